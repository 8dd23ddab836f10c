#!/usr/bin/env python3
"""A reader of session files, written from docs/format.md alone.

usage: read_varve.py FILE            says what is in it
       read_varve.py FILE OUT        also writes OUT<cache>_{k,v}.f32, raw f32 [row][token][channel] of sequence caches and
                                     [cell][channel] of cell caches, where payloads are f16 rows or group_affine codes
"""

import struct
import sys

SECTION_NAMES = {1: "file", 2: "cache", 3: "coding", 4: "state", 5: "key_tables", 6: "key_statistics", 7: "keys", 8: "values",
                 16: "amc_tiers", 17: "amc_saliencies", 18: "amc_memory", 19: "amc_records", 20: "amc_channel_order",
                 32: "cell_blocks", 33: "cell_exact_rows", 34: "cell_rotations"}
CODINGS = ["codec", "element_type", "axis", "group_size", "n_tokens", "dim", "n_streams", "bits0", "bits1", "bits2",
           "exact0", "exact1", "exact2", "row_bytes"]
CACHE_FIELDS = ["layer", "n_layers", "has_shape", "batch", "n_kv_heads", "head_dim_k", "head_dim_v", "storage_type", "n_tokens",
                "tokens_seen", "seed_capacity"]
CODEC_F16, CODEC_GROUP_AFFINE = 0, 1


class FormatError(Exception):
    pass


def require(condition, text):
    if not condition:
        raise FormatError(text)


def crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


CRC_TABLE = crc_table()


def crc32c(*parts):
    crc = 0xFFFFFFFF
    for part in parts:
        for byte in part:
            crc = (crc >> 8) ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def aligned(offset):
    return (offset + 63) // 64 * 64


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        require(self.at + n <= len(self.data), "a section is cut short")
        self.at += n
        return self.data[self.at - n : self.at]

    def numbers(self, code, n=1):
        values = struct.unpack(f"<{n}{code}", self.take(struct.calcsize(f"<{n}{code}")))
        return list(values)


def read_sections(data):
    """{(cache, type): bytes}, everything checked."""
    require(len(data) >= 64, "no room for a header")
    magic, major, minor, header_bytes, n_sections, entry_bytes, file_bytes = struct.unpack_from("<8sHHIIIQ", data)
    require(magic == b"\x93varve\r\n", "the magic number is missing")
    require(major == 1, f"format {major}.{minor}")
    require((header_bytes, entry_bytes, file_bytes) == (64, 40, len(data)), "sizes in the header")
    require(not any(data[32:60]), "reserved bytes of the header")
    require(64 + 40 * n_sections <= len(data), "the table does not fit")
    table = data[64 : 64 + 40 * n_sections]
    require(crc32c(data[:60], table) == struct.unpack_from("<I", data, 60)[0], "CRC of header and table")
    sections, end, last = {}, 64 + len(table), (-1, -1)
    for index in range(n_sections):
        kind, flags, cache, zero, offset, size, crc, zero2 = struct.unpack_from("<IIIIQQII", table, 40 * index)
        require(flags in (0, 1) and zero == zero2 == 0, "flags or reserved fields of an entry")
        require((cache, kind) > last, "order of the table")
        require(kind in SECTION_NAMES or flags == 0, f"section type {kind} is required and not known")
        require(offset == aligned(end) and offset + size <= len(data), "place of a section")
        require(not any(data[end:offset]), "padding")
        content = data[offset : offset + size]
        require(crc32c(content) == crc, f"CRC of section {kind} of cache {cache}")
        sections[cache, kind], end, last = content, offset + size, (cache, kind)
    require(aligned(end) == len(data) and not any(data[end:]), "end of the file")
    return sections


def read_coding(cursor):
    return dict(zip(CODINGS, cursor.numbers("Q", 14)))


def f32(x):
    """Rounded to f32; sums, products and quotients of two f32 in double precision round to what f32 arithmetic gives."""
    return struct.unpack("<f", struct.pack("<f", x))[0] if abs(x) < 3.4028236e38 else x * float("inf")


def exact_numbers(raw, element_type):
    if element_type == 0:
        return list(struct.unpack(f"<{len(raw) // 4}f", raw))
    if element_type == 1:
        return list(struct.unpack(f"<{len(raw) // 2}e", raw))
    halves = struct.unpack(f"<{len(raw) // 2}H", raw)
    return list(struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))))


def rows_of(values, width):
    return [values[at : at + width] for at in range(0, len(values), width)]


def unpack_codes(raw, bits, n):
    string = int.from_bytes(raw, "little")
    return [string >> (bits * i) & ((1 << bits) - 1) for i in range(n)]


def decode_group_affine(raw, coding):
    """[n_tokens][dim] of one row's payload."""
    tokens, dim, size = coding["n_tokens"], coding["dim"], coding["group_size"]
    kind, wide = coding["element_type"], 4 if coding["element_type"] == 0 else 2
    exact = [coding[f"exact{i}"] for i in range(coding["n_streams"])]
    n_groups = -(-(tokens if coding["axis"] == 0 else dim) // size)
    n_params = 0 if all(exact) else n_groups * (dim if coding["axis"] == 0 else tokens)
    cursor = Cursor(raw)
    lo = exact_numbers(cursor.take(n_params * wide), kind)
    hi = exact_numbers(cursor.take(n_params * wide), kind)
    if exact[0]:
        return rows_of(exact_numbers(cursor.take(tokens * dim * wide), kind), dim)
    bits = coding["bits0"]
    codes = unpack_codes(cursor.take((tokens * dim * bits + 7) // 8), bits, tokens * dim)
    scale = [max(f32(f32(h - l) / ((1 << bits) - 1)), f32(1e-8)) for l, h in zip(lo, hi)]
    rows = []
    for t in range(tokens):
        params = [t // size * dim + d if coding["axis"] == 0 else t * n_groups + d // size for d in range(dim)]
        rows.append([f32(f32(codes[t * dim + d] * scale[p]) + lo[p]) for d, p in enumerate(params)])
    return rows


def flat(values):
    """The numbers of nested lists, in order."""
    return [number for value in values for number in flat(value)] if isinstance(values, list) else [values]


class SequenceCache:
    def __init__(self, sections, index):
        cursor = Cursor(sections[index, 2])
        self.fields = dict(zip(CACHE_FIELDS, cursor.numbers("q", 11)))
        lines = bytes(cursor.data[cursor.at :]).decode().splitlines()
        self.settings = dict(line.split("=", 1) for line in lines)
        self.sections, self.index = sections, index

    @property
    def method(self):
        return self.settings["method"]

    def decode(self):
        """[keys, values], each [row][token][channel]; None where a codec is not this reader's."""
        if not self.fields["has_shape"]:
            return [[], []]
        return self.decode_amc() if self.method == "amc" else self.decode_grouped()

    def dim(self, side):
        return self.fields["head_dim_k" if side == 0 else "head_dim_v"]

    def decode_grouped(self):
        cursor = Cursor(self.sections[self.index, 3])
        group_size, n_sinks, _, n_tiers = cursor.numbers("q", 4)
        codings = [[read_coding(cursor) for _ in range(n_tiers)] for _ in range(2)]
        frontier = Cursor(self.sections[self.index, 4]).numbers("q", 3)
        if any(coding["codec"] != CODEC_GROUP_AFFINE for side in codings for coding in side):
            return None
        n_rows = self.fields["batch"] * self.fields["n_kv_heads"]
        n_tokens, kind = self.fields["n_tokens"], self.fields["storage_type"]
        wide = 4 if kind == 0 else 2
        sides = []
        for side in range(2):
            payload = Cursor(self.sections[self.index, 7 + side])
            rows = [[] for _ in range(n_rows)]
            token, coded = 0, 0
            while token < n_tokens:
                sink = token < n_sinks
                if not sink and coded < frontier[0]:
                    tier = max(t for t in range(n_tiers) if coded < frontier[t])
                    coding = codings[side][tier]
                    for row in rows:
                        row += decode_group_affine(payload.take(coding["row_bytes"]), coding)
                    held, coded = group_size, coded + 1
                else:
                    held = min(n_sinks if sink else group_size, n_tokens - token)
                    for row in rows:
                        row += rows_of(exact_numbers(payload.take(held * self.dim(side) * wide), kind), self.dim(side))
                token += held
            require(payload.at == len(payload.data), "bytes behind the last group")
            sides.append(rows)
        return sides

    def decode_amc(self):
        cursor = Cursor(self.sections[self.index, 3])
        codings = [[read_coding(cursor) for _ in range(3)] for _ in range(2)]
        n_heads, n_tokens = self.fields["n_kv_heads"], self.fields["n_tokens"]
        n_rows = self.fields["batch"] * n_heads
        tiers = Cursor(self.sections[self.index, 16])
        orders = None
        if (self.index, 20) in self.sections:
            order = Cursor(self.sections[self.index, 20])
            heads, dim = order.numbers("i", 2)
            orders = [rows_of(order.numbers("i", heads * dim), dim) for _ in range(2)]
        sides = [[[[0.0] * self.dim(side) for _ in range(n_tokens)] for _ in range(n_rows)] for side in range(2)]
        records = Cursor(self.sections[self.index, 19])
        for row in range(n_rows):
            row_tiers = unpack_codes(tiers.take(-(-n_tokens // 4)), 2, n_tokens)
            for tier in range(3):
                for token in (t for t in range(n_tokens) if row_tiers[t] == tier):
                    for side in range(2):
                        coding = codings[side][tier]
                        kept = decode_group_affine(records.take(coding["row_bytes"]), coding)[0]
                        places = orders[side][row % n_heads] if orders else range(len(kept))
                        for place, value in zip(places, kept):
                            sides[side][row][token][place] = value
        require(records.at == len(records.data), "bytes behind the last record")
        return sides


class CellCache:
    FIELDS = ["n_cells", "n_streams", "n_kv_heads", "head_dim_k", "head_dim_v", "rope_kind", "n_rope_dims", "sink_tokens"]

    def __init__(self, sections, index):
        cursor = Cursor(sections[index, 2])
        self.fields = dict(zip(self.FIELDS, cursor.numbers("q", 8)))
        self.sections, self.index = sections, index

    def blocks(self):
        """[(first cell, written, exact, stage)] in the order of the file."""
        state, cursor, found = Cursor(self.sections[self.index, 4]), Cursor(self.sections[self.index, 32]), []
        state.numbers("q", 3)
        for stream in range(self.fields["n_streams"]):
            clock, _, n_blocks = state.numbers("q", 3)
            for _ in range(n_blocks):
                block, *masks = cursor.numbers("I", 8)
                (newest_clock,) = cursor.numbers("q")
                *stage, _, has_detail = cursor.numbers("B", 4)
                cursor.numbers("i", 64 if has_detail else 2)
                require(newest_clock <= clock, "a block newer than its stream")
                found.append((stream * self.fields["n_cells"] + block * 32, masks[0:2], masks[4:6], stage))
        require(state.at == len(state.data) and cursor.at == len(cursor.data), "bytes behind the last block")
        return found

    def decode(self):
        """[keys, values], each [cell][n_kv_heads * head_dim]; None unless all codes are f16 rows and no rotation is pending."""
        cursor = Cursor(self.sections[self.index, 3])
        codings = []
        for _ in range(2):
            (n_stages,) = cursor.numbers("q")
            codings.append([(cursor.numbers("q", 2), read_coding(cursor))[1] for _ in range(n_stages)])
        if (self.index, 34) in self.sections or any(c["codec"] != CODEC_F16 for side in codings for c in side):
            return None
        heads, n_cells = self.fields["n_kv_heads"], self.fields["n_cells"] * self.fields["n_streams"]
        dims = [self.fields["head_dim_k"], self.fields["head_dim_v"]]
        sides = [[[0.0] * (heads * dim) for _ in range(n_cells)] for dim in dims]
        payloads = [Cursor(self.sections[self.index, 7 + side]) for side in range(2)]
        exact_rows = Cursor(self.sections[self.index, 33])
        for first, written, exact, stage in self.blocks():
            for side in range(2):
                if written[side] == 0:
                    continue
                for head in range(heads):
                    raw = payloads[side].take(codings[side][stage[side]]["row_bytes"])
                    rows = rows_of(exact_numbers(raw[: 64 * dims[side]], 1), dims[side])
                    for token in (t for t in range(32) if written[side] >> t & 1):
                        sides[side][first + token][head * dims[side] : (head + 1) * dims[side]] = rows[token]
            for token in range(32):
                for side in (s for s in range(2) if exact[s] >> token & 1):
                    sides[side][first + token] = exact_numbers(exact_rows.take(2 * heads * dims[side]), 1)
        return sides


def read_file(path):
    """(kind, model, sections, caches)"""
    with open(path, "rb") as file:
        sections = read_sections(memoryview(file.read()))
    cursor = Cursor(sections[0, 1])
    kind, n_caches = cursor.numbers("I", 2)
    model = bytes(cursor.data[cursor.at :]).decode()
    caches = [(SequenceCache if kind == 1 else CellCache)(sections, i) for i in range(n_caches)]
    return kind, model, sections, caches


def main():
    kind, model, sections, caches = read_file(sys.argv[1])
    print(f"{'sequence' if kind == 1 else 'cell'} caches, model \"{model}\"")
    for (cache, section), content in sections.items():
        print(f"cache {cache}: {SECTION_NAMES.get(section, section)}, {len(content)} bytes")
    for index, cache in enumerate(caches):
        decoded = cache.decode()
        if decoded is not None and len(sys.argv) > 2:
            for side, rows in zip("kv", decoded):
                with open(f"{sys.argv[2]}{index}_{side}.f32", "wb") as out:
                    values = flat(rows)
                    out.write(struct.pack(f"<{len(values)}f", *values))


if __name__ == "__main__":
    try:
        main()
    except FormatError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
