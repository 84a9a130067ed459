#!/usr/bin/env bash
# For make: checks the files of KINDS (attention/score.h) and prints what attention/kinds.cpp includes.
#   kind_files.sh "SHIPPED KINDS" FILE...
# A wrong file ends it with FILE:LINE, what is wrong and the fix.
#   kind_files.sh --explain LOG
# prints what a compiler says of a file, the sentences of kind_file.h and score.h before their templates.
set -euo pipefail
if [ "$1" = --explain ]; then
  # A sentence of kind_file.h is followed by its place in the file (clang: on the same line); one of score.h comes after
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
    }' "$2"
  cat "$2"
  exit
fi
shipped=$1
shift
set -f  # no file's name is a pattern
set -- $*
refuse() {
  echo "$1" >&2
  exit 1
}
# Words of attention.layers, which are joined to names by _.
words=" none alibi fox cable full window rotated unrotated gated ungated "
includes= checks= names= files= seen=
for name in $shipped; do names+="\"$name\", "; done
for file; do
  name=$(basename "$file")
  name=${name%.*}
  shift
  whole=$file
  [ -f "$file" ] || for next; do
    whole+=" $next"
    [ ! -f "$whole" ] || refuse "KINDS: $whole: make divides names at spaces; move the file to a path without, or name \
a link to its folder: ln -s '${whole%/*}' DIR"
  done
  [[ $file != *["&;|<>()\$\`\"'\\*?#!{}[]"]* ]] ||
    refuse "KINDS: $file: the shell reads a character of this path as its own; use letters, digits and _ . / - +"
  [ ! -d "$file" ] || refuse "KINDS: $file is a folder; name its files"
  [ -f "$file" ] || refuse "KINDS: $file:1: there is no such file; name files of attention/score.h's format"
  [[ $file == *.cuh ]] && [[ $name =~ ^[a-z][a-z0-9_]*$ ]] ||
    refuse "KINDS: $file:1: the file's name is the kind's: name it a small letter, then letters, digits and _, and .cuh"
  for word in ${name//_/ }; do
    [[ $words != *" $word "* && $word != window* ]] ||
      refuse "KINDS: $file:1: \"$word\" is a word of attention.layers; rename the file"
  done
  [[ " $shipped " != *" $name "* ]] ||
    refuse "KINDS: $file:1: \"$name\" is a kind of attention/policies.cuh already; rename the file"
  [[ " $seen " != *" $name "* ]] || refuse "KINDS: $file:1: two files are named \"$name\"; rename one"
  line=$(grep -nm 1 '^ *SCORE(' "$file" || true)
  [ -n "$line" ] || refuse "KINDS: $file:1: has no SCORE($name) { ... }; see the head of attention/score.h"
  [[ $line =~ SCORE\(\ *$name\ *\) ]] ||
    refuse "KINDS: $file:${line%%:*}: must say SCORE($name), as the file is named; rename one"
  grep -q 'FORMULA  *f *(' "$file" ||
    refuse "KINDS: $file:${line%%:*}: there is no formula: add FORMULA f(Z z, At at) { return z; }"
  seen+=" $name"
  path=$(realpath "$file")
  includes+="#include \"$path\""$'\n'
  checks+="#line ${line%%:*} \"$path\""$'\n'"CHECK_KIND_FILE(score_$name);"$'\n'
  names+="\"$name\", "
  files+="kind_file_of<score_$name>(\"$name\", \"$path\", R\"KIND_FILE($(cat "$file"; echo .)"
  files=${files%.}$')KIND_FILE"),\n'
done
cat <<END
$includes
$checks
static constexpr const char* names[] = {$names};
static std::vector<KindFile> list_of_files() {
  return {$files};
}
END
