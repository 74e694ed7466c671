// A matrix product in bfloat16 on processors with AVX512-BF16, of matrices that may lie in fp32: left [M, K] times right [K, N]. What is
// fp32 is rounded to bfloat16 as it is read. Sums are fp32; a result is rounded to bfloat16 once, and stored so or as fp32. Products of
// batches [B, M, K] and [B, K, N] are not rounded, and stored in fp32.
//
// The blocks are those of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008. The right side is packed
// into strips of COLUMNS columns, whose words are pairs: two numbers that follow one another along K, as the instruction takes them.
// A tile of ROWS × COLUMNS sums is kept in registers. The order of a sum depends on the sizes only, not on the number of threads.
#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "tensor.h"

constexpr int64_t LANES = 16, VECTORS = 3, ROWS = 8, COLUMNS = VECTORS * LANES;
constexpr int64_t DEPTH = 1024;         // of a packed block, along K
constexpr int64_t GROUP = 4;            // strips that are packed together, so that memory is read in longer pieces
constexpr int64_t BLOCK = 256;          // rows whose sums are kept while K goes on; a multiple of 16
constexpr int64_t PAIRS_AHEAD = 4, BYTES_AHEAD = 256;  // what is fetched before it is packed

typedef int Pair __attribute__((aligned(2), may_alias));  // two bfloat16

struct Operand {
    const char* data;
    int64_t along_k, other;  // strides, in elements
    bool fp32;
};

struct Left {
    const char* data;
    int64_t row, pair;  // strides, in bytes
};

static inline __m512i words(const float* at) { return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(at + LANES), _mm512_loadu_ps(at)); }
static inline __m512i words(const uint16_t* at) { return _mm512_loadu_si512(at); }
static inline __m512i widened(const float* at) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(at))); }
static inline __m512i widened(const uint16_t* at) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at)); }
static inline uint32_t single(const float* at) { return uint16_t(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(*at)), 0)); }
static inline uint32_t single(const uint16_t* at) { return *at; }

template <class Element>
static inline __m512i paired(const Element* first, const Element* second) {
    return _mm512_or_si512(widened(first), _mm512_slli_epi32(widened(second), 16));
}

// Sixteen rows of sixteen words become columns.
static inline void transpose(__m512i* r) {
    __m512i t[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

// Calls put(pair, sixteen words) for all pairs along K of `count` neighbours, at most sixteen; the others, and what is beyond K, are zeros.
template <class Element, class Put>
static inline void pack(const Element* from, const Operand& o, int64_t depth, int64_t count, Put put) {
    int64_t pair = 0;
    if (count == LANES && o.other == 1) {
        for (; pair < depth / 2; pair++) {
            const Element* row = from + 2 * pair * o.along_k;
            put(pair, paired(row, row + o.along_k));
        }
    } else if (count == LANES && o.along_k == 1) {
        for (; pair + LANES <= depth / 2; pair += LANES) {
            __m512i block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                const Element* at = from + i * o.other + 2 * pair;
                block[i] = words(at);
                for (size_t byte = 0; byte < 2 * LANES * sizeof(Element); byte += 64) _mm_prefetch((const char*)at + BYTES_AHEAD + byte, _MM_HINT_T0);
            }
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) put(pair + i, block[i]);
        }
    }
    for (; 2 * pair < depth; pair++) {
        alignas(64) uint32_t both[LANES] = {};
        for (int64_t i = 0; i < count; i++) {
            const Element* at = from + 2 * pair * o.along_k + i * o.other;
            both[i] = single(at) | (2 * pair + 1 < depth ? single(at + o.along_k) << 16 : 0);
        }
        put(pair, _mm512_load_si512(both));
    }
}

template <class Put>
static inline void pack(const Operand& o, int64_t k, int64_t first, int64_t depth, int64_t count, Put put) {
    const int64_t at = k * o.along_k + first * o.other;
    if (o.fp32)
        pack((const float*)o.data + at, o, depth, count, put);
    else
        pack((const uint16_t*)o.data + at, o, depth, count, put);
}

// Packs neighbours of which each row lies in one piece, row by row.
template <class Element>
static void pack_rows(const Element* from, int64_t along_k, int64_t depth, int64_t vectors, uint32_t* to, int64_t strip) {
    for (int64_t pair = 0; pair < depth / 2; pair++) {
        const Element* row = from + 2 * pair * along_k;
        for (int64_t v = 0; v < vectors; v++, row += LANES) {
            _mm_prefetch((const char*)(row + 2 * PAIRS_AHEAD * along_k), _MM_HINT_T0);
            _mm_prefetch((const char*)(row + (2 * PAIRS_AHEAD + 1) * along_k), _MM_HINT_T0);
            _mm512_store_si512(to + v / VECTORS * strip + pair * COLUMNS + v % VECTORS * LANES, paired(row, row + along_k));
        }
    }
}

// Packs a group of strips, of `strip` words each; to: [strips][pairs][COLUMNS].
static void pack_group(const Operand& o, int64_t k, int64_t first, int64_t depth, int64_t columns, uint32_t* to, int64_t strip) {
    int64_t done = 0;
    if (o.other == 1 && depth % 2 == 0) {
        const int64_t at = k * o.along_k + first;
        done = columns / LANES;
        if (o.fp32)
            pack_rows((const float*)o.data + at, o.along_k, depth, done, to, strip);
        else
            pack_rows((const uint16_t*)o.data + at, o.along_k, depth, done, to, strip);
    }
    for (int64_t v = done; v * LANES < columns; v++) {
        uint32_t* place = to + v / VECTORS * strip + v % VECTORS * LANES;
        pack(o, k, first + v * LANES, depth, std::min(LANES, columns - v * LANES), [&](int64_t pair, __m512i sixteen) {
            _mm512_store_si512(place + pair * COLUMNS, sixteen);
        });
    }
}

// Memory that is packed next: pieces of some rows. It is fetched line by line while something else is multiplied.
struct Ahead {
    const char* row = nullptr;
    int64_t rows = 0, bytes = 0, stride = 0, at = 0;  // bytes: of a piece

    int64_t lines() const { return rows * ((bytes + 63) / 64); }
    void fetch() {
        if (!rows) return;
        _mm_prefetch(row + at, _MM_HINT_T1);
        if ((at += 64) < bytes) return;
        at = 0, row += stride, rows--;
    }
};

// Multiplies ROWS rows by a strip of N vectors; sums: [ROWS][COLUMNS], added to unless it is the beginning. Every `period` pairs a line
// of what comes next is fetched; the period is a power of two.
template <int N>
static void multiply(Left left, const uint32_t* strip, int64_t pairs, float* sums, bool beginning, Ahead& ahead, int64_t period) {
    __m512 sum[ROWS][N];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int v = 0; v < N; v++) sum[r][v] = beginning ? _mm512_setzero_ps() : _mm512_load_ps(sums + r * COLUMNS + v * LANES);
    const char *upper = left.data, *lower = left.data + ROWS / 2 * left.row;
    for (int64_t pair = 0; pair < pairs; pair++, upper += left.pair, lower += left.pair, strip += COLUMNS) {
        if (!(pair & (period - 1))) ahead.fetch();
        __m512i right[N];
#pragma GCC unroll 3
        for (int v = 0; v < N; v++) right[v] = _mm512_load_si512(strip + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const int both = *(const Pair*)((r < ROWS / 2 ? upper : lower) + r % (ROWS / 2) * left.row);
#pragma GCC unroll 3
            for (int v = 0; v < N; v++) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], (__m512bh)right[v], (__m512bh)_mm512_set1_epi32(both));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int v = 0; v < N; v++) _mm512_store_ps(sums + r * COLUMNS + v * LANES, sum[r][v]);
}

struct Result {
    char* data;
    int64_t stride;  // of a row, in elements
    bool fp32;
    bool past_the_cache;  // rows of whole lines, which nothing reads soon
    bool exact;           // not rounded; fp32
};

static inline __m256i rounded(const float* sums, const float* bias) {
    return (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(_mm512_load_ps(sums), _mm512_load_ps(bias)));
}
static inline __m512 as_fp32(__m256i halves) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16); }

// Rounds `rows` rows of N vectors and writes them, the last vector with `last` of its lanes.
template <int N>
static void store(const float* sums, const float* bias, int64_t rows, __mmask16 last, const Result& result, int64_t at) {
    const int64_t stride = result.stride;
    if (!result.fp32) {
        uint16_t* to = (uint16_t*)result.data + at;
        for (int64_t r = 0; r < rows; r++, to += stride, sums += COLUMNS)
            for (int v = 0; v < N; v++)
                _mm256_mask_storeu_epi16(to + v * LANES, v + 1 < N ? 0xffff : last, rounded(sums + v * LANES, bias + v * LANES));
        return;
    }
    float* to = (float*)result.data + at;
    for (int64_t r = 0; r < rows; r++, to += stride, sums += COLUMNS)
        for (int v = 0; v < N; v++) {
            const __m512 values = result.exact ? _mm512_load_ps(sums + v * LANES) : as_fp32(rounded(sums + v * LANES, bias + v * LANES));
            if (result.past_the_cache)
                _mm512_stream_ps(to + v * LANES, values);
            else
                _mm512_mask_storeu_ps(to + v * LANES, v + 1 < N ? 0xffff : last, values);
        }
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};
template <class Element>
using Memory = std::unique_ptr<Element[], Free>;
template <class Element>
static Memory<Element> memory(int64_t elements) {
    return Memory<Element>((Element*)std::aligned_alloc(64, (std::max<int64_t>(1, elements) * sizeof(Element) + 63) / 64 * 64));
}

struct Product {
    Operand left, right;
    Result result;
    const float* bias;  // [N], rounded to bfloat16
    int64_t m, k, n, threads;

    // Rows of the left side are read where they lie if the numbers of a pair are neighbours there. Packed is what is from `packed_from` on:
    // everything, or the last block, if its last pair has one number only.
    bool in_place() const { return !left.fp32 && left.along_k == 1 && m >= ROWS && (k % 2 == 0 || m % ROWS == 0); }
    int64_t strip_words() const { return (std::min(DEPTH, k) + 1) / 2 * COLUMNS; }
    int64_t blocks_along_k() const { return (k + DEPTH - 1) / DEPTH; }
    int64_t packed_from() const { return !in_place() ? 0 : k % 2 ? (blocks_along_k() - 1) * DEPTH : k; }

    int64_t run() const {
        const int64_t deep = blocks_along_k(), start = packed_from(), pairs = (k - start + 1) / 2, sixteens = (m + LANES - 1) / LANES;
        const int64_t block = deep > 1 ? std::min(BLOCK, sixteens * LANES) : sixteens * LANES, blocks = (m + block - 1) / block;
        // Equal groups of columns, several for each thread.
        const int64_t vectors = (n + LANES - 1) / LANES, most = (vectors + GROUP * VECTORS - 1) / (GROUP * VECTORS);
        const int64_t wanted = (std::max(most, 4 * threads / std::min(blocks, 4 * threads)) + threads - 1) / threads * threads;
        const int64_t width = std::max<int64_t>(1, vectors / std::min(wanted, vectors)) * LANES, groups = (n + width - 1) / width;
        const int64_t strips = (width + COLUMNS - 1) / COLUMNS, kept_rows = deep > 1 ? block : ROWS;
        const auto packed = memory<uint32_t>(sixteens * LANES * pairs);
        const auto packed_right = memory<uint32_t>(threads * strips * strip_words());
        const auto sums = memory<float>(threads * strips * kept_rows * COLUMNS);
        const auto biases = memory<float>(groups * strips * COLUMNS);
        if (!packed || !packed_right || !sums || !biases) return refusal(OUT_OF_MEMORY);
        for (int64_t i = 0; i < groups * strips * COLUMNS; i++) {
            const int64_t column = i / (strips * COLUMNS) * width + i % (strips * COLUMNS);
            biases[i] = bias && column < n ? bias[column] : 0.0f;
        }
#pragma omp parallel num_threads(int(threads))
        {
#pragma omp for schedule(static)
            for (int64_t sixteen = 0; sixteen < sixteens; sixteen++)
                if (pairs) pack_left(start, sixteen, pairs, packed.get());
#pragma omp for schedule(static)
            for (int64_t thread = 0; thread < threads; thread++) {
                uint32_t* right_of_thread = packed_right.get() + thread * strips * strip_words();
                float* sums_of_thread = sums.get() + thread * strips * kept_rows * COLUMNS;
                const int64_t parts = groups * blocks;
                for (int64_t part = parts * thread / threads, end = parts * (thread + 1) / threads; part < end; part++) {
                    const int64_t group = part / blocks, first = part % blocks * block, next = (part + 1) / blocks;
                    const int64_t column = group * width, columns = std::min(width, n - column);
                    multiply_part(
                        first, std::min(block, m - first), column, columns, part + 1 < end ? next * width : n, start, pairs,
                        packed.get(), right_of_thread, sums_of_thread, deep > 1, biases.get() + group * strips * COLUMNS);
                }
                _mm_sfence();
            }
        }
        return FINE;
    }

    // packed: [panels of ROWS rows][pairs][ROWS]
    void pack_left(int64_t start, int64_t sixteen, int64_t pairs, uint32_t* packed) const {
        uint32_t *one = packed + sixteen * LANES * pairs, *other = one + ROWS * pairs;
        pack(left, start, sixteen * LANES, k - start, std::min(LANES, m - sixteen * LANES), [&](int64_t pair, __m512i words) {
            _mm256_store_si256((__m256i*)(one + pair * ROWS), _mm512_castsi512_si256(words));
            _mm256_store_si256((__m256i*)(other + pair * ROWS), _mm512_extracti64x4_epi64(words, 1));
        });
    }

    // Of the right side, the numbers of some columns from `at` on along K.
    Ahead ahead(int64_t at, int64_t column, int64_t columns) const {
        const int64_t bytes = right.fp32 ? 4 : 2, depth = std::min(DEPTH, k - at), across = std::min(columns, n - column);
        const char* first = right.data + (at * right.along_k + column * right.other) * bytes;
        if (across < 1) return {};
        if (right.other == 1) return {first, depth, across * bytes, right.along_k * bytes};
        return {first, across, depth * bytes, right.other * bytes};
    }

    void multiply_part(
        int64_t row, int64_t rows, int64_t column, int64_t columns, int64_t next_column, int64_t start, int64_t pairs,
        const uint32_t* packed, uint32_t* packed_right, float* sums, bool keeps, const float* biases) const {
        for (int64_t at = 0; at < k; at += DEPTH) {
            const int64_t depth = std::min(DEPTH, k - at);
            pack_group(right, at, column, depth, columns, packed_right, strip_words());
            Ahead next = at + depth < k ? ahead(at + depth, column, columns) : ahead(0, next_column, columns);
            const int64_t times_a_line = (rows + ROWS - 1) / ROWS * ((columns + COLUMNS - 1) / COLUMNS) * (depth / 2) / (next.lines() + 1);
            int64_t period = 1;
            while (2 * period <= times_a_line) period *= 2;
            for (int64_t strip = 0; strip * COLUMNS < columns; strip++) {
                const int64_t some = std::min(COLUMNS, columns - strip * COLUMNS);
                const int64_t vectors = (some + LANES - 1) / LANES;
                const auto times = vectors == 3 ? multiply<3> : vectors == 2 ? multiply<2> : multiply<1>;
                const auto write = vectors == 3 ? store<3> : vectors == 2 ? store<2> : store<1>;
                const __mmask16 last = 0xffff >> (vectors * LANES - some);
                for (int64_t panel = row; panel < row + rows; panel += ROWS) {
                    float* tile = sums + (keeps ? strip * ((rows + ROWS - 1) / ROWS * ROWS) + panel - row : 0) * COLUMNS;
                    int64_t first = panel;  // of the rows that are multiplied; where the last are fewer, some are computed twice
                    Left of_panel;
                    if (at < start) {
                        first = std::min(panel, m - ROWS);
                        of_panel = {left.data + (first * left.other + at) * 2, left.other * 2, 4};
                    } else {
                        of_panel = {(const char*)(packed + panel * pairs + (at - start) / 2 * ROWS), 4, ROWS * 4};
                    }
                    times(of_panel, packed_right + strip * strip_words(), (depth + 1) / 2, tile, at == 0, next, period);
                    if (at + depth == k) {
                        const float* done = tile + (panel - first) * COLUMNS;
                        write(done, biases + strip * COLUMNS, std::min(ROWS, m - panel), last, result, panel * n + column + strip * COLUMNS);
                    }
                }
            }
        }
    }
};

struct Arguments {  // as in mixed_product.py
    const int64_t* descriptors;  // of left, right, result and perhaps bias
    int64_t length, tensors;
    int64_t threads;
};

enum { LEFT, RIGHT, RESULT, BIAS, MOST };

// Reads the tensors of a call, matrices or batches of them but for the bias; returns 0, or what is refused and why.
static int64_t read(const Arguments& a, int64_t dims, Tensor* t) {
    if (a.tensors < BIAS || a.tensors > MOST || a.threads < 1) return refusal(WRONG_ARGUMENTS);
    Reader reader{a.descriptors, a.length, a.tensors};
    std::vector<Span> spans;
    for (int64_t i = 0; i < a.tensors; i++) {
        if (!reader.next(t[i])) return refusal(WRONG_ARGUMENTS);
        if (t[i].dims != (i == BIAS ? 1 : dims)) return refusal(WRONG_SHAPE, 0, i);
        const bool fp32 = i == BIAS || t[i].dtype == FLOAT32;
        if (const Reason reason = checked(t[i], fp32 ? FLOAT32 : BFLOAT16)) return refusal(reason, 0, i);
        if (!t[i].count) return refusal(WRONG_SHAPE, 0, i);
        spans.push_back({t[i].data, t[i].data + t[i].count * element_bytes(t[i].dtype), i == RESULT, 0, i});
    }
    if (!reader.done()) return refusal(WRONG_ARGUMENTS);
    const int64_t m = dims - 2, k = dims - 1;  // of the left side
    if (t[RIGHT].sizes[m] != t[LEFT].sizes[k]) return refusal(WRONG_SHAPE, 0, RIGHT);
    if (t[RESULT].sizes[m] != t[LEFT].sizes[m] || t[RESULT].sizes[k] != t[RIGHT].sizes[k]) return refusal(WRONG_SHAPE, 0, RESULT);
    if (!is_contiguous(t[RESULT])) return refusal(OTHER_LAYOUT, 0, RESULT);
    for (const int64_t i : {RIGHT, RESULT})
        if (dims == 3 && t[i].sizes[0] != t[LEFT].sizes[0]) return refusal(WRONG_SHAPE, 0, i);
    if (a.tensors > BIAS && t[BIAS].count != t[RESULT].sizes[k]) return refusal(WRONG_SHAPE, 0, BIAS);
    return overlap(spans);
}

// The product of matrices, or of the matrices `number` of batches.
static Product product_of(const Tensor* t, int64_t number, int64_t threads) {
    const int64_t first = t[LEFT].dims - 2, second = first + 1;
    // The stride of a dimension of size 1 means nothing.
    const auto stride = [](const Tensor& of, int64_t dimension) { return of.sizes[dimension] == 1 ? 1 : of.strides[dimension]; };
    const auto begin = [&](const Tensor& of) {
        return of.data + (first ? number * stride(of, 0) * element_bytes(of.dtype) : 0);
    };
    const bool fp32 = t[RESULT].dtype == FLOAT32;
    const int64_t m = t[LEFT].sizes[first], k = t[LEFT].sizes[second], n = t[RIGHT].sizes[second];
    char* to = begin(t[RESULT]);
    const bool past = fp32 && n % LANES == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0;
    return {
        {begin(t[LEFT]), stride(t[LEFT], second), stride(t[LEFT], first), t[LEFT].dtype == FLOAT32},
        {begin(t[RIGHT]), stride(t[RIGHT], first), stride(t[RIGHT], second), t[RIGHT].dtype == FLOAT32},
        {to, n, fp32, past, first == 1},
        nullptr, m, k, n, threads};
}

extern "C" int64_t mixed_product(const Arguments* arguments) {
    Tensor t[MOST];
    if (const int64_t refused = read(*arguments, 2, t)) return refused;
    Product product = product_of(t, 0, arguments->threads);
    if (arguments->tensors > BIAS) product.bias = t[BIAS].as<float>();
    return product.run();
}

// Batches, not rounded. Each thread multiplies matrices of its own.
extern "C" int64_t exact_products(const Arguments* arguments) {
    Tensor t[MOST];
    if (arguments->tensors > BIAS) return refusal(WRONG_ARGUMENTS);
    if (const int64_t refused = read(*arguments, 3, t)) return refused;
    if (t[RESULT].dtype != FLOAT32) return refusal(WRONG_DTYPE, 0, RESULT);
    int64_t refused = FINE;
#pragma omp parallel for num_threads(int(arguments->threads)) schedule(static) reduction(max : refused)
    for (int64_t number = 0; number < t[LEFT].sizes[0]; number++) refused = std::max(refused, product_of(t, number, 1).run());
    return refused;
}
