# shellcheck shell=bash
# Functions that the launchers share: running commands, parsing options, and messages.

say() { printf '%s\n' "$*" >&2; }
stop() { say "error: $*"; exit 2; }

# Runs a command. With --dry-run it prints the quoted command instead, even if the output of the command is redirected.
exec 3>&1
run() {
  if [[ ${dry_run:-} ]]; then
    { printf '%q ' "$@"; echo; } >&3
  else
    "$@" 3>&-
  fi
}

# need NAME...: stops with an error if one of these options has no value.
need() {
  local _option
  for _option in "$@"; do
    [[ ${!_option:-} ]] || stop "--${_option//_/-}: found nothing, expected a value; see --help"
  done
}

# expand_home NAME...: replaces ~ at the start of the values of these options. Bash does not do this in --name=~/path.
expand_home() {
  local _option
  for _option in "$@"; do
    # shellcheck disable=SC2088 # the ~ that bash has left
    [[ ${!_option} != '~/'* ]] || printf -v "$_option" '%s' "$HOME/${!_option:2}"
  done
}

# read_options "names with a value" "flags" "$@"
# Parses --name=value, --flag and the arguments of bertjax after --. It sets the variables with the names of the
# options, where _ replaces -. The launcher must have initialized all these variables.
read_options() {
  local _values=" $1 " _flags=" $2 " _option # no option has a name with a leading underscore
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

# check_positive NAME...: stops with an error unless the values of these options are positive integers.
check_positive() {
  local _option
  for _option in "$@"; do
    [[ ${!_option} =~ ^[1-9][0-9]*$ ]] || stop "--${_option//_/-}=${!_option}: expected a whole number from 1"
  done
}

# check_count NAME: stops with an error unless the value of this option is an integer from 0.
check_count() { [[ ${!1} =~ ^(0|[1-9][0-9]*)$ ]] || stop "--$1=${!1}: expected a whole number from 0"; }

# cost CHIPS: prints the cost, chips x price x hours, before anything is created.
cost() {
  local chips=$1 _option
  for _option in price hours; do
    [[ ${!_option:-0} =~ ^[0-9]+(\.[0-9]+)?$ ]] || stop "--$_option=${!_option}: expected a number such as 1.20"
  done
  if [[ ! ${price:-} ]]; then
    say "$chips chips; --price=DOLLARS, per chip and hour, shows the cost"
    return
  fi
  say "$(LC_ALL=C awk -v n="$chips" -v p="$price" -v h="${hours:-0}" 'BEGIN {
    printf "%d chips x %.2f = %.2f an hour", n, p, n * p
    if (h > 0) printf "; %g hours: %.2f", h, n * p * h }')"
}
