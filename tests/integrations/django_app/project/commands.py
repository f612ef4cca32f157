"""The commands under `manage.py outboxq`, in one process: typed, and called through `call_command`."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress

import click
import django

django.setup()

from django.core.management import CommandError, call_command, execute_from_command_line  # noqa: E402
from shop import tasks  # noqa: E402

from outboxq.cli import main  # noqa: E402
from outboxq.cli.groups import DATABASE_PARAMETERS  # noqa: E402
from outboxq.contrib.django import outbox, outboxes  # noqa: E402
from outboxq.contrib.django.management.commands.outboxq import ELSEWHERE, Command  # noqa: E402


def typed(*words):
    """Run `manage.py outboxq …`; return its exit code, its output and its errors."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["manage.py", "outboxq", *words]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            execute_from_command_line(sys.argv)
        except SystemExit as ended:
            code = ended.code or 0
    return code, out.getvalue(), err.getvalue()


def called(*words, **options):
    out = io.StringIO()
    call_command("outboxq", *words, stdout=out, **options)
    return out.getvalue()


def refused(*words, **options):
    with redirect_stderr(io.StringIO()) as heard, suppress(CommandError):
        called(*words, **options)
        raise AssertionError(words)
    return heard.getvalue()


def names(group, path=()):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        inner = isinstance(command, click.Group)
        yield from names(command, (*path, name)) if inner else [((*path, name), {one.name for one in command.params})]


# every command of `outboxq` exists, without the options for the database's address
ours, theirs = dict(names(main)), dict(names(Command()._group("default")))
assert (
    {path[0] for path in ours.keys() - theirs.keys()}
    == {"completion", "demo", "grants", "upgrade", "web"}
    == set(ELSEWHERE)
)
for path, found in theirs.items():
    assert ours[path] - DATABASE_PARAMETERS == found - {"database", "settings", "pythonpath", "skip_checks"}, path
    assert "database" in found

# a database without tables
for words in (("status",), ("worker", "--burst", "--skip-checks")):
    code, _, said = typed(*words, "--database", "other")
    assert (code, said.count("run: manage.py migrate --database other\n")) == (4, 1), said
    assert "outboxq upgrade" not in said

call_command("migrate", verbosity=0)
handle = tasks.send.using(delay=3600).enqueue(1)
failing = tasks.book.enqueue(2, then="raise")

# a task by its name, in either database; the live workers; the problems that need attention
sent = called("enqueue", tasks.send.name, "--args", '{"order": 7}', "--delay", "1h").strip()
assert "task_created" in called("task", "history", sent)
assert called("workers", "list").startswith("host\tpid")
code, said, _ = typed("check")
assert (code, said.partition(":")[0]) == (1, "no_worker"), said
assert "manage.py outboxq worker -q" in said
assert called("db", "current").endswith("the revision of this release\n")

# typed commands
code, said, _ = typed("--help")
assert code == 0
assert "manage.py outboxq [options] COMMAND" in said
assert "  task   " in said, said
assert typed()[:2] == (0, said)
assert "is due in" in typed("task", "explain", str(handle.id))[1]
assert "\tpaused" in typed("queue", "pause", "mail")[1] + typed("status", "--settings=project_settings")[1]
code, said, _ = typed("--database=default", "task", "list", "--queue", "mail")
assert (code, str(handle.id) in said) == (0, True)
assert typed("task", "run-now", str(handle.id)) == (0, f"task {handle.id} is due now\n", "")
assert typed("queue", "resume", "mail")[0] == 0
code, _, said = typed("worker", "--burst", "--concurrency=1")
assert (code, "outboxq.W003" in said) == (0, True), said  # the worker runs the system checks
assert tasks.seen == [1]
assert str(failing.id) in typed("failed", "list")[1]
assert "ValueError: no" in typed("task", "show", str(failing.id), "--traceback")[1]
code, _, said = typed("failed", "redrive", "--all")
assert (code, "--yes" in said) == (2, True), said
assert typed("failed", "redrive", "--all", "--yes")[1] == "1 redriven\n"
assert typed("task", "cancel", str(failing.id), "--reason=typed twice")[1] == f"task {failing.id} was cancelled\n"
assert typed("verify") == (0, "", "every invariant holds\n")
assert typed("prune", "--older-than", "0s", "--yes") == (0, "2 tasks were deleted with their events\n", "")
code, _, said = typed("task", "explain", str(handle.id))
assert (code, said) == (3, f"outboxq: there is no task {handle.id}; its transaction may not have been committed yet\n")
code, _, said = typed("task", "show")
assert (code, "Usage: manage.py outboxq task show" in said, "Missing argument" in said) == (2, True, True), said
code, _, said = typed("upgrade")
assert (code, "run: manage.py migrate" in said) == (2, True), said
NO_ALIAS = "outboxq: DATABASES in the settings has no database 'nowhere'; it has 'default', 'other'\n"
code, _, said = typed("verify", "--database=nowhere")
assert (code, said) == (2, NO_ALIAS)

# schedules of the project's tasks, with their options and arguments
assert typed("schedule", "next", "@daily", "--tz", "Asia/Tokyo", "-n", "2")[1].count(" 00:00:00 JST\n") == 2
schedule = ("schedule", "add", "nightly", "shop.tasks.send", "30 2 * * *", "--args")
assert typed(*schedule, '{"order": "seven"}')[0] == 1
code, said, _ = typed(*schedule, '{"order": 7}')
assert (code, "At 02:30 every day (UTC)" in said) == (0, True), said
assert outbox.store.schedules.get("nightly").queue == "mail"
code, said, _ = typed("schedule", "trigger", "nightly")
assert (code, outbox.store.get(outbox.store.find(said.strip())).args) == (0, '{"order":7}')
assert typed("schedule", "show", "weekly")[0] == 3
REMOVED = "the schedule 'nightly' was removed; planted ticks that were not due yet are cancelled\n"
assert typed("schedule", "remove", "nightly") == (0, REMOVED, "")
assert typed("task", "cancel", said.strip())[1] == f"task {said.strip()} was cancelled\n"

# call_command
assert called("queue", "list").startswith("queue\tpaused since\tpaused because\tconcurrency\trate\torder\t")
assert refused("status", database="nowhere").startswith("outboxq: DATABASES in the settings has no database 'nowhere'")
assert refused("status", "--by", "moon") == ""
refused("worker", "--skip-checks", "--processes=2")

# another database
call_command("migrate", database="other", verbosity=0)
elsewhere = tasks.elsewhere.enqueue()
assert str(elsewhere.id) in typed("task", "list", "--database=other")[1] == typed("--database=other", "task", "list")[1]
assert str(elsewhere.id) not in typed("task", "list")[1]
for words in (["--database=other", "task", "explain"], ["task", "explain", "--database", "other"]):
    said = typed(*words, str(elsewhere.id))[1]
    assert "manage.py outboxq worker --database other -q " in said, said
assert outboxes["other"].integration.front_end.typed(["verify"]) == "manage.py outboxq verify --database other"
assert outbox.integration.front_end.typed(["verify"]) == "manage.py outboxq verify"
assert called("task", "cancel", str(elsewhere.id), database="other") == f"task {elsewhere.id} was cancelled\n"
assert outboxes["other"].store.verify() == outbox.store.verify() == []
# a command that opens the application itself finds the project's application
code, _, said = typed("relay", "run", "--burst")
assert (code, "this application declares no relay to a broker" in said) == (2, True), said

print("to the end")
