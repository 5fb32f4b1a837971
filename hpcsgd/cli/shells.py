"""Completion scripts in the words of bash, zsh and fish."""

from collections.abc import Callable, Iterator

from hpcsgd.cli.completion import FOLDER, Flag, Place, Value

BASH = """\
# bash completion of hpcsgd; use it with: eval "$(hpcsgd completion bash)"
_hpcsgd_words() {
    local word
    while IFS= read -r word; do
        [ -n "$word" ] && COMPREPLY+=("$word")
    done < <(compgen -W "$1" -- "$2")
}
_hpcsgd_files() {
    local current="$1" ending file
    shift
    compopt -o filenames 2>/dev/null
    while IFS= read -r file; do
        COMPREPLY+=("$file")
    done < <(
        compgen -d -- "$current"
        for ending in "$@"; do compgen -f -X "!*$ending" -- "$current"; done
    )
}
_hpcsgd() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    local place="" word skip=0 seen=0 i
    COMPREPLY=()
    # --flag=value arrives as three words.
    if [ "$current" = "=" ]; then
        current=""
    elif [ "$previous" = "=" ]; then
        previous="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        [ "$word" = "=" ] && continue
        if [ $skip = 1 ]; then skip=0; continue; fi
        case "$place:$word" in
@COMMANDS@
            *:-*) ;;
            *) seen=$((seen + 1)) ;;
        esac
    done
    case "$place:$previous" in
@VALUES@
    esac
    case "$current" in
        -*) ;;
        *) case "$place:$seen" in
@POSITIONALS@
        esac ;;
    esac
    case "$place" in
@FLAGS@
    esac
}
complete -F _hpcsgd hpcsgd
"""


def bash(places: list[Place]) -> str:
    """One function that finds its place, then offers what may stand there."""
    parts = {
        "COMMANDS": [*_bash_commands(places), *_bash_skips(places)],
        "VALUES": _bash_values(places),
        "POSITIONALS": _bash_positionals(places),
        "FLAGS": [
            f'        "{_name(p)}") _hpcsgd_words "{_joined(f.name for f in p.flags)}"'
            ' "$current" ;;'
            for p in places
        ],
    }
    script = BASH
    for mark, lines in parts.items():
        script = script.replace(f"@{mark}@", "\n".join(lines))
    return script


def _name(place: Place) -> str:
    return " ".join(place.path)


def _joined(words: Iterator[str]) -> str:
    return " ".join(words)


def _bash_commands(places: list[Place]) -> Iterator[str]:
    for place in places:
        if place.path:
            *above, own = place.path
            yield f'            "{" ".join(above)}:{own}") place="{_name(place)}" ;;'


def _bash_skips(places: list[Place]) -> Iterator[str]:
    """Words after which one more belongs to the flag."""
    for place in places:
        taking = [f'"{_name(place)}:{f.name}"' for f in place.flags if f.value]
        if taking:
            yield f"            {' | '.join(taking)}) skip=1 ;;"


def _bash_values(places: list[Place]) -> Iterator[str]:
    for place in places:
        for flag in place.flags:
            if flag.value:
                offer = _bash_offer(flag.value)
                yield f'        "{_name(place)}:{flag.name}") {offer}return ;;'


def _bash_positionals(places: list[Place]) -> Iterator[str]:
    for place in places:
        names = tuple(name for name, _ in place.commands)
        values = [Value(choices=names)] if names else place.positionals
        for number, value in enumerate(values):
            offer = _bash_offer(value)
            yield f'            "{_name(place)}:{number}") {offer}return ;;'


def _bash_offer(value: Value) -> str:
    if value.choices:
        return f'_hpcsgd_words "{" ".join(value.choices)}" "$current"; '
    if value.endings:
        endings = [f'"{e}"' for e in value.endings if e != FOLDER]
        return " ".join(["_hpcsgd_files", '"$current"', *endings]) + "; "
    return ""


def zsh(places: list[Place]) -> str:
    """A function for each place, in the words of _arguments."""
    functions = [_zsh_function(place) for place in places]
    head = "# zsh completion of hpcsgd; use it with: source <(hpcsgd completion zsh)\n"
    return head + "\n".join(functions) + "\ncompdef _hpcsgd hpcsgd\n"


def _zsh_function(place: Place) -> str:
    name = "_".join(["_hpcsgd", *place.path])
    specs = [_zsh_flag(flag) for flag in place.flags]
    specs += [f"'{n}:value:{_zsh_value(v)}'" for n, v in _numbered(place)]
    if not place.commands:
        return f"{name}() {{\n    _arguments {_lines(specs)}\n}}"
    names = " ".join(command for command, _ in place.commands)
    specs += [f"'1:command:({names})'", "'*::argument:->rest'"]
    cases = "\n".join(f"        {c}) {name}_{c} ;;" for c, _ in place.commands)
    return (
        f"{name}() {{\n    local curcontext=$curcontext state line\n"
        f"    typeset -A opt_args\n    _arguments -C {_lines(specs)}\n"
        f'    [[ $state == rest ]] && case "$line[1]" in\n{cases}\n    esac\n}}'
    )


def _numbered(place: Place) -> list[tuple[int, Value]]:
    return list(enumerate(place.positionals, 1))


def _lines(specs: list[str]) -> str:
    return " \\\n        ".join(specs)


def _zsh_flag(flag: Flag) -> str:
    if flag.value is None:
        return f"'{flag.name}[{flag.help}]'"
    return f"'{flag.name}=[{flag.help}]:value:{_zsh_value(flag.value)}'"


def _zsh_value(value: Value) -> str:
    if value.choices:
        return f"({' '.join(value.choices)})"
    endings = [e.lstrip(".") for e in value.endings if e != FOLDER]
    if endings:
        return f'_files -g "*.({"|".join(endings)})"'
    return "_files -/" if value.endings else " "


def fish(places: list[Place]) -> str:
    """A line for each thing that may stand somewhere."""
    lines = ["# fish completion of hpcsgd; use it with:"]
    lines += ["#   hpcsgd completion fish | source", "complete -c hpcsgd -f"]
    for place in places:
        where = _fish_where(place)
        for name, text in place.commands:
            lines.append(f"complete -c hpcsgd -n '{where}' -a {name} -d '{text}'")
        for value in place.positionals:
            lines.append(f"complete -c hpcsgd -n '{where}'{_fish_value(value)}")
        for flag in place.flags:
            wants = "" if flag.value is None else f" -x{_fish_value(flag.value)}"
            own = f"-l {flag.name[2:]} -d '{flag.help}'"
            lines.append(f"complete -c hpcsgd -n '{where}' {own}{wants}")
    return "\n".join(lines) + "\n"


def _fish_where(place: Place) -> str:
    """The condition under which the words so far lead to this place."""
    if not place.path:
        return "__fish_use_subcommand"
    conditions = [f"__fish_seen_subcommand_from {word}" for word in place.path]
    inner = " ".join(name for name, _ in place.commands)
    if inner:
        conditions.append(f"not __fish_seen_subcommand_from {inner}")
    return "; and ".join(conditions)


def _fish_value(value: Value) -> str:
    if value.choices:
        return f" -a '{' '.join(value.choices)}'"
    # One call an ending: older versions take the first alone.
    calls = [f"__fish_complete_suffix {e}" for e in value.endings if e != FOLDER]
    if calls:
        return f" -k -a '({'; '.join(calls)})'"
    return " -a '(__fish_complete_directories)'" if value.endings else ""


SHELLS: dict[str, Callable[[list[Place]], str]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}
