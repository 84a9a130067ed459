// The documents of a window: with attention.documents = separate a row sees keys of its own alone, and positions count
// from its first token. A document begins with the token that separates them (data.separator); what stands before the
// first one in a window is a document too.
#pragma once
#include "kernels/gpu.cuh"

// documents [B, T] = the first position of each position's document, and the one behind its last, from tokens [B, T].
// Floor: B T tokens read and twice as many ints written; a block has a sequence.
void find_documents(int2* documents, const int* tokens, int separator, int B, int T, cudaStream_t stream);
