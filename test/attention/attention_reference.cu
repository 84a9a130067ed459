// The tests of attention spend most of their time in these functions: they are compiled once, with full optimization.
#include "test/attention/attention_reference.h"

REFERENCES(, Exact)
REFERENCES(, Naive<float>)
REFERENCES(, Naive<bf16>)
