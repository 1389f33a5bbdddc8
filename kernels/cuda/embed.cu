// out[r] = table[token[r]], widened from bf16 to f32: the first value of the residual stream.
//
// grid (rows), 256 threads; hidden % 8 == 0; 16-byte loads. A token that is not yet known to the host is given as
// ~i: the i-th token that the step before drew, read from where the sampler left it.
//
// sass embed: LDG.E.128 STG.E.128
#include "common.cuh"

struct EmbedArgs {
  float* out;         // [rows, hidden]
  const bf16* table;  // [vocab, hidden]
  const int* tokens;  // [rows]
  const int* drawn;   // tokens of the step before
  int hidden;
};

KERNEL(embed, EmbedArgs, 256) {
  int token = a.tokens[blockIdx.x];
  if (token < 0) token = a.drawn[~token];
  const bf16* from = a.table + (i64)token * a.hidden;
  float* to = a.out + (i64)blockIdx.x * a.hidden;
  for (int i = threadIdx.x * 8; i < a.hidden; i += blockDim.x * 8) store8(to + i, load8(from + i));
}
