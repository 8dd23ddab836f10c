#!/usr/bin/env python3
"""Writes the shell completions of the varve program, docs/cli/completion, from what its --help says.

usage: cli_completions.py VARVE [--check]
VARVE is the built program. --check writes nothing and fails if a file is not what would be written.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs" / "cli" / "completion"
STOCK = ["f16", "q8_0", "q4_0"]
GLOBAL = {"--help": "show help", "--version": "show version", "--verbose": "show the log of llama.cpp"}


class Option:
    def __init__(self, names, kind, text):
        self.short = names[0] if len(names) > 1 else ""
        self.name = names[-1]
        self.kind = kind  # as the help shows it: FILE, INT, ...; "" for a switch
        self.text = text

    @property
    def values(self):
        """What completes its value: file, cache, program, a list of words, or None."""
        if self.kind == "FILE":
            return "file"
        if self.name in ("--method", "--methods"):
            return "cache"
        if self.name == "--program":
            return "program"
        choice = re.fullmatch(r"\{(.*)\}", self.kind)
        return choice.group(1).split(",") if choice else None


def run(program, *arguments):
    return subprocess.run([program, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def help_options(text):
    """The options of one --help: name, kind of value, and its sentence, which may stand on the lines after."""
    options = []
    for line in text.split("Options:", 1)[1].split("\nExample:")[0].splitlines():
        start = re.match(r"  (?:(-\w),)?(--[a-z-]+)(.*)", line)
        if start:
            short, name, rest = start.groups()
            head, _, sentence = rest.partition("  ")
            if len(line) < 34:
                head, sentence = rest, ""
            head = re.sub(r" (REQUIRED|\.\.\.|Excludes: \S+)", "", head).strip()
            choice = re.search(r"\{.*\}", head)
            kind = choice.group(0) if choice else re.split(r"[:=]", head)[0]
            options.append(Option([short, name] if short else [name], kind, sentence.strip()))
        elif line.startswith(" " * 10) and options:
            options[-1].text = f"{options[-1].text} {line.strip()}".strip()
    for option in options:
        if option.name == "--help":
            option.text = "show help"
    return options


def read_program(program):
    top = run(program, "--help")
    summaries = dict(re.findall(r"(?m)^  ([a-z]+) {3,}(\S.*)$", top.split("Subcommands:", 1)[1]))
    commands = {name: (text, help_options(run(program, name, "--help"))) for name, text in summaries.items()}
    methods = json.loads(run(program, "methods", "--json"))
    names = [m["name"] for m in methods["methods"]]
    return commands, names, names + [p["name"] for p in methods["presets"]] + STOCK


def bash(commands, methods, caches):
    files, choices = set(), {}
    for _, options in commands.values():
        for option in options:
            if option.values in ("file", "program"):
                files.update(filter(None, [option.short, option.name]))
            elif isinstance(option.values, list):
                choices[option.name] = option.values
    out = [
        "# bash completion for varve; written by scripts/cli_completions.py.",
        "_varve() {",
        "  local current previous command word options",
        '  current="${COMP_WORDS[COMP_CWORD]}"',
        '  previous="${COMP_WORDS[COMP_CWORD-1]}"',
        "  COMPREPLY=()",
        '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '    case "$word" in',
        '      --) [[ "$command" == run ]] && { COMPREPLY=($(compgen -c -f -- "$current")); return; } ;;',
        "      -*) ;;",
        '      *) [[ -z "$command" ]] && command="$word" ;;',
        "    esac",
        "  done",
        '  case "$previous" in',
        f"    {'|'.join(sorted(files))})",
        '      COMPREPLY=($(compgen -f -- "$current"))',
        "      return ;;",
        "    --method|--methods)",
        "      # After the last comma of a list.",
        '      local done=""',
        '      [[ "$current" == *,* ]] && done="${current%,*},"',
        f'      COMPREPLY=($(compgen -P "$done" -W "{" ".join(caches)}" -- "${{current##*,}}"))',
        "      return ;;",
    ]
    for name, values in choices.items():
        out += [f"    {name})", f'      COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$current"))', "      return ;;"]
    out += ["  esac", '  case "$command" in']
    for name, (_, options) in commands.items():
        words = " ".join(sorted(option.name for option in options))
        if name == "methods":
            words += " " + " ".join(methods)
        out.append(f'    {name}) options="{words}" ;;')
    out += [
        f'    *) options="{" ".join(commands)} {" ".join(GLOBAL)}" ;;',
        "  esac",
        '  COMPREPLY=($(compgen -W "$options" -- "$current"))',
        "}",
        "complete -o default -F _varve varve",
    ]
    return "\n".join(out) + "\n"


def zsh_quoted(text):
    return text.replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:").replace("`", "")


def zsh(commands, methods, caches):
    out = ["#compdef varve", "# zsh completion for varve; written by scripts/cli_completions.py.", ""]
    out += ["_varve_caches() {", f"  _values -s , cache {' '.join(caches)}", "}", "", "_varve() {"]
    out += ["  local -a commands", "  commands=("]
    out += [f"    '{name}:{zsh_quoted(text)}'" for name, (text, _) in commands.items()]
    out += ["  )", "  if (( CURRENT == 2 )); then", "    _describe command commands"]
    out += ["    _arguments " + " ".join(f"'{name}[{text}]'" for name, text in GLOBAL.items()), "    return", "  fi"]
    out += ["  local command=$words[2]", "  shift words", "  (( CURRENT-- ))", "  case $command in"]
    for name, (_, options) in commands.items():
        out += [f"    {name})", "      _arguments \\"]
        for option in options:
            value = ""
            if option.kind:
                action = {"file": "_files", "cache": "_varve_caches", "program": "_command_names -e", None: " "}.get(
                    option.values if not isinstance(option.values, list) else "list", f"({' '.join(option.values or [])})"
                )
                kind = "choice" if option.kind.startswith("{") else option.kind.replace("=", "-")
                value = f":{kind}:{action}"
            many = "*" if option.name == "--set" else ""
            for spelling in filter(None, [option.short, option.name]):
                out.append(f"        '{many}{spelling}[{zsh_quoted(option.text)}]{value}' \\")
        if name == "methods":
            out.append(f"        '1:method:({' '.join(methods)})' \\")
        if name == "run":
            out.append("        '*::program:_normal' \\")
        out[-1] = out[-1][:-2] + " ;;"
    out += ["  esac", "}", "", '_varve "$@"']
    return "\n".join(out) + "\n"


def fish(commands, methods, caches):
    def quoted(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    out = ["# fish completion for varve; written by scripts/cli_completions.py.", "complete -c varve -f"]
    out += ["function __varve_caches", "    # A comma list goes on after its last comma."]
    out += ["    set -l done (string match -r '^.*,' -- (commandline -ct))"]
    out += [f"    for name in {' '.join(caches)}", "        echo \"$done$name\"", "    end", "end"]
    for name, text in GLOBAL.items():
        out.append(f"complete -c varve -n __fish_use_subcommand -l {name[2:]} -d {quoted(text)}")
    for name, (text, options) in commands.items():
        out.append(f"complete -c varve -n __fish_use_subcommand -a {name} -d {quoted(text)}")
        under = f"complete -c varve -n '__fish_seen_subcommand_from {name}'"
        if name == "methods":
            out.append(f"{under} -a {quoted(' '.join(methods))}")
        if name == "run":
            out.append(f"{under} -a '(__fish_complete_subcommand)'")
        for option in options:
            line = under + (f" -s {option.short[1:]}" if option.short else "") + f" -l {option.name[2:]}"
            if option.values == "file":
                line += " -rF"
            elif option.values == "cache":
                line += " -x -a '(__varve_caches)'"
            elif option.values == "program":
                line += " -rF -a '(__fish_complete_command)'"
            elif option.values:
                line += f" -x -a {quoted(' '.join(option.values))}"
            elif option.kind:
                line += " -x"
            out.append(f"{line} -d {quoted(option.text)}")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    facts = read_program(args.program)
    stale = []
    for name, make in (("varve.bash", bash), ("_varve", zsh), ("varve.fish", fish)):
        path = FOLDER / name
        text = make(*facts)
        if args.check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not args.check:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"{', '.join(stale)}: not what --help says; run scripts/cli_completions.py with the built program")


if __name__ == "__main__":
    main()
