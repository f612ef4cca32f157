"""Numbers for people and programs that watch: one set of live counts, one set of roll-ups, and what is read from both.

* `live` counts what waits, runs and has failed now; `samples` keeps such counts.
* `metrics` keeps what workers have counted.
* `statistics` and `overview` read both, and `health` says what of it needs attention. The command line, the dashboard and Prometheus
  render these.
"""
