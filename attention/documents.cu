// A thread has neighbouring positions: it needs the last separator before them and the first one behind.
#include "attention/documents.cuh"

namespace {

constexpr int THREADS = 256;

__global__ void documents_kernel(int2* documents, const int* tokens, int separator, int T) {
  __shared__ int last[THREADS], first[THREADS];  // separator in each thread's positions; none: -1 and T
  int each = (T + THREADS - 1) / THREADS, begin = min(int(threadIdx.x) * each, T), end = min(begin + each, T);
  documents += size_t(blockIdx.x) * T, tokens += size_t(blockIdx.x) * T;
  int start = -1, stop = T;
  for (int t = begin; t < end; t++)
    if (tokens[t] == separator) start = t, stop = min(stop, t);
  last[threadIdx.x] = start, first[threadIdx.x] = stop;
  __syncthreads();
  start = 0, stop = T;
  for (int n = 0; n < int(threadIdx.x); n++) start = max(start, last[n]);
  for (int n = threadIdx.x + 1; n < THREADS; n++) stop = min(stop, first[n]);
  for (int t = begin; t < end; t++) {
    if (tokens[t] == separator) start = t;
    documents[t].x = start;
  }
  for (int t = end - 1; t >= begin; t--) {
    documents[t].y = stop;
    if (tokens[t] == separator) stop = t;
  }
}

}  // namespace

void find_documents(int2* documents, const int* tokens, int separator, int B, int T, cudaStream_t stream) {
  LAUNCH(documents_kernel, dim3(B), dim3(THREADS), 0, stream, documents, tokens, separator, T);
}
