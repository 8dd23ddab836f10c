// Key tables and the energies they are fitted from, as bytes of a session file.
#ifndef VARVE_SESSION_KEY_TABLES_H_
#define VARVE_SESSION_KEY_TABLES_H_

#include <string>

#include "base/status.h"
#include "codec/key_table.h"
#include "layout/block_layout.h"
#include "session/bytes.h"

namespace varve {

void PutKeyTable(const KeyTable& table, ByteWriter* to);

/// A table for `layout` (kRopePair), with everything checked that kernels take for granted. `name`
/// goes before the text of an error. Errors: kBadFormat.
[[nodiscard]] Result<KeyTable> GetKeyTable(const BlockLayout& layout, const std::string& name,
                                           ByteReader* from);

void PutEnergies(const PairEnergies& energies, ByteWriter* to);

/// energies->key and ->query have their sizes already. Errors: kBadFormat.
[[nodiscard]] Status GetEnergies(const std::string& name, ByteReader* from, PairEnergies* energies);

}  // namespace varve

#endif  // VARVE_SESSION_KEY_TABLES_H_
