"""`torchsan completion SHELL`: what makes a shell complete commands, flags and their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from torchsan.options import Watch, When
from torchsan.records import Kind
from torchsan.records.finding import Check

_HOW = {
    "bash": "# torchsan completion bash >> ~/.bashrc",
    "zsh": "# torchsan completion zsh >> ~/.zshrc, below compinit",
    "fish": "# torchsan completion fish > ~/.config/fish/completions/torchsan.fish",
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `completion` to the command line."""
    parser = commands.add_parser(
        "completion",
        description="Print a script that completes commands, flags and values. Its first line says where it goes.",
    )
    parser.add_argument("shell", choices=tuple(_HOW), help="for which shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from torchsan.cli.main import make_parser

    flags = command_flags(make_parser())
    make = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]
    sys.stdout.write(f"{_HOW[args.shell]}\n{make(flags, _values())}")
    return 0


def command_flags(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """Return the commands of the command line, each with its long flags."""
    found: dict[str, list[str]] = {}
    for action in parser._actions:
        for name, command in (action.choices or {}).items() if isinstance(action.choices, dict) else ():
            flags = [flag for each in command._actions for flag in each.option_strings if flag.startswith("--")]
            found[name] = sorted(flags)
    return found


def _values() -> dict[str, Sequence[str]]:
    """What may stand after a flag, or after the command `explain`, where that is one of a few words."""
    return {
        "--check": [str(check) for check in Check],
        "--watch": [str(level) for level in Watch],
        "--when": [str(when) for when in When],
        "--calls": ["all", "1", "2", "steps:"],
        "explain": [str(kind) for kind in Kind],
        "completion": list(_HOW),
    }


def _bash(flags: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    after = "\n".join(f"    {name}) words='{' '.join(words)}' ;;" for name, words in values.items())
    of = "\n".join(f"    {name}) words='{' '.join(each)}' ;;" for name, each in flags.items())
    return f"""\
_torchsan() {{
  local words= here=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  case $before in
    torchsan) words='{" ".join(flags)}' ;;
{after}
    *) [[ $here == -* ]] && case ${{COMP_WORDS[1]}} in
{of}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$here"))
  [[ ${{#COMPREPLY[@]}} -gt 0 ]] || COMPREPLY=($(compgen -f -- "$here"))
}}
complete -o filenames -F _torchsan torchsan
"""


def _zsh(flags: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    """The script of bash, which zsh can run."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(flags, values)}"


def _fish(flags: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    lines = [f"complete -c torchsan -n __fish_use_subcommand -f -a '{' '.join(flags)}'"]
    for command, each in flags.items():
        seen = f"complete -c torchsan -n '__fish_seen_subcommand_from {command}'"
        for flag in each:
            known = f" -x -a '{' '.join(values[flag])}'" if flag in values else ""
            lines.append(f"{seen} -l {flag.removeprefix('--')}{known}")
        if command in values:
            lines.append(f"{seen} -f -a '{' '.join(values[command])}'")
    return "\n".join(lines) + "\n"
