"""`redrive completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click


@click.command(short_help="Print the script for completion in your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete redrive's commands and options.

    \b
    Examples:
      redrive completion bash >> ~/.bashrc
      redrive completion zsh >> ~/.zshrc
      redrive completion fish > ~/.config/fish/completions/redrive.fish
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kind = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    script = kind(context.find_root().command, {}, "redrive", "_REDRIVE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
