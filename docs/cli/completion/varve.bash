# bash completion for varve; written by scripts/cli_completions.py.
_varve() {
  local current previous command word options
  current="${COMP_WORDS[COMP_CWORD]}"
  previous="${COMP_WORDS[COMP_CWORD-1]}"
  COMPREPLY=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in
      --) [[ "$command" == run ]] && { COMPREPLY=($(compgen -c -f -- "$current")); return; } ;;
      -*) ;;
      *) [[ -z "$command" ]] && command="$word" ;;
    esac
  done
  case "$previous" in
    --html|--model|--plugin|--program|--prompt-file|--state|--text|-f|-m)
      COMPREPLY=($(compgen -f -- "$current"))
      return ;;
    --method|--methods)
      # After the last comma of a list.
      local done=""
      [[ "$current" == *,* ]] && done="${current%,*},"
      COMPREPLY=($(compgen -P "$done" -W "fp16 uniform kivi age_tiered amc safe balanced small seed f16 q8_0 q4_0" -- "${current##*,}"))
      return ;;
    --family)
      COMPREPLY=($(compgen -W "reference quantization" -- "$current"))
      return ;;
  esac
  case "$command" in
    profile) options="--ctx --help --json --max-tokens --method --model --plugin --prompt --prompt-file --seed --set --temp --threads" ;;
    compare) options="--chunks --ctx --decode --error-layers --fresh --help --html --json --methods --model --plugin --score-from --set --speed-runs --state --step --text --threads" ;;
    run) options="--dry-run --help --json --method --no-check --plugin --set" ;;
    methods) options="--family --help --json fp16 uniform kivi age_tiered amc" ;;
    estimate) options="--batch --ctx --decoded --help --json --measure --methods --model --plugin --set --text --threads --tokens" ;;
    recommend) options="--ctx --help --json --model --plugin --ram --text --threads" ;;
    doctor) options="--help --json --model --plugin --program" ;;
    layers) options="--ctx --fresh --help --json --max-protected --method --model --plugin --protect --set --state --step --text --threads" ;;
    *) options="profile compare run methods estimate recommend doctor layers --help --version --verbose" ;;
  esac
  COMPREPLY=($(compgen -W "$options" -- "$current"))
}
complete -o default -F _varve varve
