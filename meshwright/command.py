"""The command `meshwright`: its words are the apps of `experiments`."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches

from experiments.config.command_words import command_words, use_config_folders
from experiments.config.help import HELP_FLAGS, SCRIPTS, candidates, command_help
from experiments.config.verbs import ALIASES, COMMANDS, VERBS, jobs_of
from experiments.run.loading import end_at_once_on_signals, environment_fault, say_that_it_loads

EXIT_BAD_INPUT = 2
USAGE = """\
Meshwright: learned and exact scheduling of distributed DNN training.

meshwright <command> [key=value ...]     meshwright <command> --help     meshwright --version
meshwright --completion bash|zsh|fish     a script that completes commands, keys and options

"""


def main(arguments: list[str] | None = None) -> int:
    """Do what a command line says; returns the exit code.

    Help, version and completion import no app.
    """
    words = sys.argv[1:] if arguments is None else arguments
    first, rest = (words[0], words[1:]) if words else ("--help", [])
    try:
        if first in HELP_FLAGS:
            width = max(map(len, COMMANDS)) + 2
            verbs = (f"  {name:{width}}{jobs_of(name)[0].summary}\n" for name in VERBS)
            others = "".join(f"  {x:{width}}{y} {z}\n" for x, (y, z) in sorted(ALIASES.items()))
            print(f"{USAGE}{''.join(verbs)}\nOther names:\n\n{others}", end="")
        elif first == "--version":
            from importlib.metadata import version

            print(f"meshwright {version('meshwright')}")
        elif first == "--completion":
            return _print_script(rest)
        elif first == "--complete":
            print("\n".join(candidates(" ".join(rest))))
        elif first in COMMANDS:
            return _run(first, rest, is_process=arguments is None)
        else:
            close = get_close_matches(first, COMMANDS, 3, 0.6)
            meant = f"did you mean {' or '.join(close)}?" if close else "see meshwright --help"
            return _refused(f"there is no command {first!r}: {meant}")
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _run(verb: str, arguments: list[str], *, is_process: bool) -> int:
    """Run an app; `is_process`: nothing comes after it, which is asked for by `sys.argv`."""
    if set(arguments) & set(HELP_FLAGS):
        words, _, folders = command_words(arguments)
        use_config_folders(folders)
        from envs.errors import InputError

        try:
            print(command_help(verb, words, f"meshwright {verb}"))
        except InputError as error:
            return _refused(str(error))
        return 0
    if is_process:
        end_at_once_on_signals()  # while the app is being imported
        say_that_it_loads()
        sys.argv = [f"meshwright {verb}", *arguments]
        sys.path.insert(0, "")  # classes of one's own lie beside the configs, as for `python -m`
    if (fault := environment_fault()) is not None:
        return _refused(fault)
    from experiments.command_line import main_of

    return main_of(verb)(None if is_process else arguments)


def _print_script(shells: list[str]) -> int:
    if len(shells) != 1 or shells[0] not in SCRIPTS:
        return _refused(f"--completion takes one of {', '.join(SCRIPTS)}")
    print(SCRIPTS[shells[0]], end="")
    return 0


def _refused(fault: str) -> int:
    print(f"error: {fault}", file=sys.stderr)
    return EXIT_BAD_INPUT
