"""What a shell offers to complete a command line of `meshwright` with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.run.declared import (
    RECIPE,
    app_form,
    app_keys,
    app_names,
    choices,
    chooses,
    command_words,
    fitting_of,
    option_keys,
    options,
    recipes,
    use_config_folders,
    variant_of,
)
from experiments.run.help import FLAGS

SCRIPTS = {
    "bash": """\
_meshwright() {
    local line=${COMP_LINE:0:$COMP_POINT} word
    word=${line##*[[:space:]]}
    mapfile -t COMPREPLY < <(meshwright --complete "$line" 2>/dev/null)
    # bash takes "=" and ":" for the ends of words, and puts what it is given behind the last
    local break=${word%"${word##*[=:]}"}
    COMPREPLY=("${COMPREPLY[@]#"$break"}")
}
complete -o default -o nospace -F _meshwright meshwright
""",
    "zsh": """\
#compdef meshwright
_meshwright() {
    local -a found
    found=("${(@f)$(meshwright --complete "${words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n ${found[1]} ]]; then compadd -S '' -a found; else _files; fi
}
compdef _meshwright meshwright
""",
    "fish": """\
complete -c meshwright -a '(meshwright --complete (commandline -cp) 2>/dev/null)'
""",
}


def candidates(line: str) -> list[str]:
    """Whole words that the last word of `line`, which begins with the command, may be meant as."""
    _, *words = line.split(" ") if " " in line else [line, line]
    words = [word for word in words[:-1] if word] + words[-1:]
    last = words[-1]
    if len(words) == 1:
        found = [*(f"{name} " for name in app_names()), "--help ", "--version ", "--completion "]
    elif words[0] == "--completion":
        found = list(SCRIPTS)
    elif words[0] in app_names():
        found = list(_of_app(words[0], words[1:-1], last))
    else:
        found = []
    return [word for word in dict.fromkeys(found) if word.startswith(last)]


def _of_app(name: str, before: Sequence[str], last: str) -> Iterator[str]:
    if last.startswith("-"):
        yield from (flag.partition(" ")[0].rstrip(",") for flag in FLAGS)
        return
    words, _, folders = command_words(before)
    use_config_folders(folders)
    app = app_form(name)
    pattern = variant_of(app.variants, [*words, last])
    shown = app if pattern is None else app.variants[pattern]
    named = dict(word.split("=", 1) for word in words if "=" in word)
    values = "=" in last
    for choice in choices(shown.config_name):
        word = f"{choice.group}@{choice.package}" if choice.package else choice.group
        if not values:
            yield f"{word}="
        elif last.startswith(f"{word}="):
            yield from (f"{word}={option} " for option in fitting_of(app, shown, choice))
        for key in option_keys(choice.group, named.get(word, choice.option)):
            yield from _key(f"{choice.package or choice.group}.{key.name}", key.value, last)
    if values:
        for pattern in app.variants:  # the words that lead to another app
            group = pattern.partition("=")[0]
            yield from (f"{group}={x} " for x in options(group) if chooses(x, pattern))
        yield from (f"+{RECIPE}={recipe} " for recipe in _recipes(name))
    elif _recipes(name):
        yield f"+{RECIPE}="
    for key in app_keys(shown.config_name):
        yield from _key(key.name, key.value, last)


def _recipes(name: str) -> list[str]:
    app = app_form(name)
    forms = [app, *app.variants.values()]
    return sorted({recipe for form in forms for recipe in recipes(form.config_name)})


def _key(name: str, value: str | None, last: str) -> Iterator[str]:
    if value in {"true", "false"} and last.startswith(f"{name}="):
        yield from (f"{name}=true ", f"{name}=false ")
    elif value is not None and "=" not in last:
        yield f"{name}="
