#!/usr/bin/env bash
# For make, about the files of kinds (attention/kind.h): those of the tree and those of KINDS.
#   kind_files.sh list "attention/kinds/A.cuh ..." FILE...    what attention/kinds.cpp includes
# A wrong file ends it with FILE:LINE, what is wrong and the fix.
#   kind_files.sh instance FAMILY NAME "FILE..."    the source that compiles a family of kernels for one of all kinds
#   kind_files.sh explain LOG                       what a compiler says of a file: the sentences of kind_row.h and
#                                                   score.h before their templates
set -euo pipefail
refuse() {
  echo "$1" >&2
  exit 1
}

explain() {
  # A sentence of kind_row.h is followed by its place in the file (clang: on the same line); one of score.h comes after
  # the first line that led to it.
  awk '
    function say() { if (!said[text]++) print "KINDS: " place ": " text; text = "" }
    / [Ii]n instantiation / { place = "" }
    match($0, /[^ ]+\.cuh:[0-9]+/) {
      if (text || !place) place = substr($0, RSTART, RLENGTH)
      if (text) say()
    }
    /static.assert[a-z]* failed/ {
      text = $0
      sub(/.*static.assert[a-z]* failed[^:"]*(due to requirement .[^"]*)?[:"] ?/, "", text)
      sub(/"$/, "", text)
      if (/\.cuh:/ || (place && /score\.h:/)) say()
    }' "$1"
  cat "$1"
}

instance() {
  local number=-1 file
  for file in $3; do
    number=$((number + 1))
    [[ $file != *"/$2.cuh" && $file != "$2.cuh" ]] || break
  done
  cat <<END
#include "attention/formula.cuh"
#include "attention/$1/kernels.cuh"
#include "$([[ $file == attention/kinds/* ]] && echo "$file" || realpath "$file")"
template void check_policies<kind_$2>();
[[maybe_unused]] static const bool added = add_$1<kind_$2>(Kind($number));
END
}

# line_of FILE WORD NAME: the number of the line that begins with WORD(NAME), the only one with WORD(
line_of() {
  local line
  line=$(grep -nm 1 "^ *$2(" "$1" || true)
  [ -n "$line" ] || return 0
  [[ $line =~ $2\(\ *$3\ *\) ]] || refuse "KINDS: $1:${line%%:*}: must say $2($3), as the file is named; rename one"
  echo "${line%%:*}"
}

# check FILE: that it can be the kind of its name; sets name, line and form (SCORE, KIND)
check() {
  local file=$1
  [[ $file != *["&;|<>()\$\`\"'\\*?#!{}[]"]* ]] ||
    refuse "KINDS: $file: the shell reads a character of this path as its own; use letters, digits and _ . / - +"
  [ ! -d "$file" ] || refuse "KINDS: $file is a folder; name its files"
  [ -f "$file" ] || refuse "KINDS: $file:1: there is no such file; name files of attention/score.h's format"
  [[ $file == *.cuh ]] && [[ $name =~ ^[a-z][a-z0-9_]*$ ]] ||
    refuse "KINDS: $file:1: the file's name is the kind's: name it a small letter, then letters, digits and _, and .cuh"
  form=SCORE
  line=$(line_of "$file" SCORE "$name")
  if [ -z "$line" ]; then
    form=KIND
    line=$(line_of "$file" KIND "$name")
  fi
  [ -n "$line" ] || refuse "KINDS: $file:1: has no SCORE($name) { ... }; see the head of attention/score.h, or for a \
policy KIND($name) { ... } of attention/kind.h"
  if [ $form = SCORE ]; then
    grep -q 'FORMULA  *f *(' "$file" ||
      refuse "KINDS: $file:$line: there is no formula: add FORMULA f(Z z, At at) { return z; }"
  else
    grep -q "PolicyOf<kind_$name," "$file" ||
      refuse "KINDS: $file:$line: there is no policy: add template <class Maths> struct PolicyOf<kind_$name, Maths> \
(attention/kind.h)"
  fi
}

list() {
  local tree=$1 file next name line form path whole
  shift
  set -f  # no file's name is a pattern
  set -- $*
  local includes= checks= names= rows= shipped= seen=
  add() {  # add PATH ARGUMENTS: the kind `name`, with the arguments of kind_row_of()
    includes+="#include \"$1\""$'\n'
    checks+="#line $line \"$1\""$'\n'"CHECK_$form(kind_$name);"$'\n'
    names+="\"$name\", "
    rows+="kind_row_of<kind_$name>(\"$name\", $2),"$'\n'
  }
  for file in $tree; do
    name=$(basename "$file" .cuh)
    shipped+=" $name"
    check "$file"
    add "$file" "nullptr, nullptr"
  done
  for file; do
    name=$(basename "$file")
    name=${name%.*}
    shift
    whole=$file
    [ -f "$file" ] || for next; do
      whole+=" $next"
      [ ! -f "$whole" ] || refuse "KINDS: $whole: make divides names at spaces; move the file to a path without, or \
name a link to its folder: ln -s '${whole%/*}' DIR"
    done
    check "$file"
    [[ " $shipped " != *" $name "* ]] ||
      refuse "KINDS: $file:1: \"$name\" is a kind of attention/kinds/ already; rename the file"
    [[ " $seen " != *" $name "* ]] || refuse "KINDS: $file:1: two files are named \"$name\"; rename one"
    seen+=" $name"
    path=$(realpath "$file")
    whole="$(cat "$file"; echo .)"
    add "$path" "\"$path\", R\"KIND_FILE(${whole%.})KIND_FILE\""
  done
  cat <<END
$includes
$checks
static constexpr const char* names[] = {$names};
static std::vector<KindRow> list_of_kinds() {
  return {$rows};
}
END
}

"$@"
