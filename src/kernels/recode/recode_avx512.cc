// recode on AVX-512.
#include "kernels/lanes_avx512.h"
#include "kernels/recode/recode.h"
#include "kernels/recode/recode_body.h"

namespace varve {

void RecodeAvx512(RecodeArgs& args) { RecodeBlock(args); }

}  // namespace varve
