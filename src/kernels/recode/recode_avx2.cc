// recode on AVX2.
#include "kernels/lanes_avx2.h"
#include "kernels/recode/recode.h"
#include "kernels/recode/recode_body.h"

namespace varve {

void RecodeAvx2(RecodeArgs& args) { RecodeBlock(args); }

}  // namespace varve
