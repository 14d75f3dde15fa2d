# Completion of the command `holdfast` in bash: its commands, the options that each names in its help, and the keys of a config.
# Packages install it; from a source tree:  source configs/completion/holdfast.bash
_holdfast() {
  local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} command='' i
  # Bash takes "--section.key=value" for three words.
  if [[ ${COMP_WORDS[COMP_CWORD]} == = || ${COMP_WORDS[COMP_CWORD - 1]} == = ]]; then
    [[ $word == = ]] && word=''
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* && ${COMP_WORDS[i]} != help ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  if [[ -z $command ]]; then
    local commands
    commands=$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]\{2,\}\) .*/\1/p')
    mapfile -t COMPREPLY < <(compgen -W "$commands help --help --version" -- "$word")
    return
  fi
  if [[ $word == --*.* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$("$program" config help 2>/dev/null | grep -o -- '--[a-z_]*\.[a-z_.]*=')" -- "$word")
    compopt -o nospace
    return
  fi
  if [[ $word == -* ]]; then
    local options help
    help=$("$program" help "$command" 2>/dev/null)
    options=$(grep -o -- '--[a-z][a-z-]*' <<<"$help" | sort -u)
    # Where a command takes keys, the sections of the config are the way to them.
    if [[ $help == *--section.key=* ]]; then
      options=$(grep -vx -- --section <<<"$options")
      options+=" $("$program" config help 2>/dev/null | grep -o -- '--[a-z_]*\.' | sort -u)"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *. ]] && compopt -o nospace
    return
  fi
  mapfile -t COMPREPLY < <(compgen -f -- "$word")
  compopt -o filenames
}
complete -F _holdfast holdfast
