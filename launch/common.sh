# shellcheck shell=bash
# What the launchers share: how they run a command, and what they say.

say() { printf '%s\n' "$*" >&2; }
stop() { say "error: $*"; exit 2; }

# Runs a command, or with --dry-run prints it as one could type it, also where its output is not for the terminal.
exec 3>&1
run() {
  if [[ ${dry_run:-} ]]; then
    { printf '%q ' "$@"; echo; } >&3
  else
    "$@" 3>&-
  fi
}

# option NAME: its value is wanted and was not given.
need() {
  local _option
  for _option in "$@"; do
    [[ ${!_option:-} ]] || stop "--${_option//_/-}: found nothing, expected a value; see --help"
  done
}

# Takes --name=value, --flag and, after --, the arguments of bertjax; sets variables of these names (- becomes _),
# which the launcher has set to '' before.
# read_options "names with a value" "flags" "$@"
read_options() {
  local _values=" $1 " _flags=" $2 " _option # no name that an option could have
  shift 2
  while (($#)); do
    _option=${1%%=*} _option=${_option#--} _option=${_option//-/_}
    case $1 in
      --)
        shift
        # shellcheck disable=SC2034 # the launchers read it
        arguments=("$@")
        return
        ;;
      --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
      --*=*)
        [[ $_values == *" $_option "* ]] || stop "$1: found an unknown option, expected one of:$_values"
        printf -v "$_option" '%s' "${1#*=}"
        ;;
      --*)
        [[ $_flags == *" $_option "* ]] ||
          stop "$1: found an unknown flag, expected one of:$_flags; values are given with ="
        printf -v "$_option" yes
        ;;
      *) stop "$1: found a word, expected --option=value, or -- before the arguments of bertjax" ;;
    esac
    shift
  done
}

# whole NAME: its value is a number from 1 on.
whole() {
  local _option
  for _option in "$@"; do
    [[ ${!_option} =~ ^[1-9][0-9]*$ ]] || stop "--${_option//_/-}=${!_option}: found no whole number from 1 on"
  done
}

# What it will cost, before anything is created: chips x price x hours.
cost() {
  local chips=$1 _option
  for _option in price hours; do
    [[ ${!_option:-0} =~ ^[0-9]+(\.[0-9]+)?$ ]] || stop "--$_option=${!_option}: found no number, expected one such as 1.20"
  done
  if [[ ! ${price:-} ]]; then
    say "$chips chips; --price=DOLLARS (of a chip and hour) says what they cost"
    return
  fi
  say "$(LC_ALL=C awk -v n="$chips" -v p="$price" -v h="${hours:-0}" 'BEGIN {
    printf "%d chips x %.2f = %.2f an hour", n, p, n * p
    if (h > 0) printf "; %g hours: %.2f", h, n * p * h }')"
}
