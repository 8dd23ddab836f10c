// What qk and pv fetch while they compute, for the kernel files of one level
// (kernels/lines_<level>.h comes first): everything here is internal to each.
#ifndef VARVE_KERNELS_AHEAD_H_
#define VARVE_KERNELS_AHEAD_H_

namespace varve {
namespace {

/// Far enough that memory answers in time, near enough that a line is not lost from L1 again: about
/// 2.5 KiB.
VARVE_INLINE int HeadsAhead(int n_heads, size_t head_stride) {
  const int wanted = head_stride < 1024 ? 3 : 2;
  return n_heads < wanted ? n_heads : wanted;
}

/// Lines of codes that will be read some heads later: of this block, then of what is read next.
struct Ahead {
  const uint8_t* at;
  const uint8_t* end;

  VARVE_INLINE Ahead(const uint8_t* codes, size_t head_stride, int n_heads, int head,
                     const uint8_t* next, size_t next_stride) {
    const int later = head + HeadsAhead(n_heads, head_stride);
    if (later < n_heads) {
      at = codes + later * head_stride;
      end = at + head_stride;
    } else {
      at = next + (later - n_heads) * next_stride;
      end = at + next_stride;
    }
  }

  VARVE_INLINE void FetchRest() { Fetch(static_cast<int>((end - at) / kLine)); }

  VARVE_INLINE void Fetch(int n_lines) {
    for (int i = 0; i < n_lines && at < end; ++i, at += kLine)
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
};

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_AHEAD_H_
