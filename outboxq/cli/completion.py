"""`outboxq completion`: the script by which a shell completes the commands and options of outboxq."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, shell: str) -> None:
    """Print the script for completion in bash, zsh or fish.

    \b
    bash  eval "$(outboxq completion bash)" in ~/.bashrc
    zsh   eval "$(outboxq completion zsh)" in ~/.zshrc
    fish  outboxq completion fish > ~/.config/fish/completions/outboxq.fish
    """  # noqa: D301 - click reads the backspace
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    script = kind(context.find_root().command, {}, "outboxq", "_OUTBOXQ_COMPLETE").source_template
    names = {
        "complete_func": "_outboxq_completion",
        "complete_var": "_OUTBOXQ_COMPLETE",
        "prog_name": "outboxq",
    }
    click.echo(script % names)
