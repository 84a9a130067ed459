// Most of a reference's time is spent here, and most of the time in which a test of attention would be compiled.
#include "test/attention/attention_reference.h"

REFERENCES(, Exact)
REFERENCES(, Naive<float>)
REFERENCES(, Naive<bf16>)
