"""Numbers for people and for monitoring: live counts, roll-ups, and views of both.

* `live` counts the tasks that are now waiting, running or failed; `samples` stores such counts.
* `metrics` stores the counts that workers report.
* `statistics` and `overview` read all of these numbers, and `health` finds the problems in them. The command line, the
  dashboard and Prometheus render the results.
"""
