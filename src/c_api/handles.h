// What the handles of caches hold.
#ifndef VARVE_C_API_HANDLES_H_
#define VARVE_C_API_HANDLES_H_

#include <memory>

#include "cache/cell_cache.h"
#include "cache/sequence_cache.h"
#include "varve/varve.h"

struct varve_cache {
  std::unique_ptr<varve::SequenceCache> cache;
};

struct varve_cells {
  std::unique_ptr<varve::CellCache> cache;
};

#endif  // VARVE_C_API_HANDLES_H_
