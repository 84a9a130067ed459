#!/usr/bin/env bash
# For make: which instructions a compiler's flags add to those that it uses on every CPU of this kind.
#   cpu_features.sh "-march=native" COMPILER...
# Prints names that emulation/processor_check.cpp asks for: on x86-64 those of __builtin_cpu_supports(), on AArch64
# those of the macros __ARM_FEATURE_NAME.
set -euo pipefail
export LC_ALL=C
flags=$1
shift
macros() { "$@" -dM -E -x c++ /dev/null | awk '{ print $2 }' | sort; }
# Only intrinsics and the system use these: a CPU may lack them, as those of virtual machines often do.
by_hand='adx|aes|amx.*|avx512vp2intersect|cl.*|enqcmd|fsgsbase|hle|kl|movdir.*|mwaitx?|pclmul|pconfig'
by_hand+='|pku|pre?f.*|ptwrite|rd.*|rtm|serialize|sgx|sha.*|shstk|sse4a|tsxldtrk|uintr|vaes|vpclmulqdq'
by_hand+='|waitpkg|wbnoinvd|widekl|xsave.*'
added=$(comm -23 <(macros "$@" $flags) <(macros "$@") |
  sed -n 's/^__ARM_FEATURE_\(.*[^_]\)$/arm:\1/p; t; s/^__\([A-Z0-9_]*[A-Z0-9]\)__$/\1/p' |
  tr A-Z a-z | grep -vxE "$by_hand" || true)
sed -n 's/^arm://p' <<<"$added"
# sse4_1 is sse4.1 to the compiler, apx_f apxf: of all spellings those that it knows.
spelled=$(sed '/^arm:/d; /_/!b; h; s/_/./g; p; g; s/_/-/g; p; g; s/_//g' <<<"$added")
unknown=$(sed 's/.*/bool f() { return __builtin_cpu_supports("&"); }/; s/f()/f(int (*)[__LINE__])/' <<<"$spelled" |
  "$@" -fmax-errors=0 -fsyntax-only -x c++ - 2>&1 | sed -n 's/^<stdin>:\([0-9]*\):.*error.*/\1d/p' || true)
sed "$unknown" <<<"$spelled"
