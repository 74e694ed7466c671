// Gradients as int8 with an fp32 scale for each GROUP of elements, and their sums: compression.cu for the CPU, in one pass over
// memory. The bits are those of the plain-torch reference, so it is compiled without contraction to fused multiply-adds. Tensors that
// do not fit together are refused before anything is written (tensor.h).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <vector>

#include "tensor.h"

constexpr int64_t GROUP = 256, ALIGNMENT = 16;
constexpr uint32_t MAGNITUDE = 0x7fffffffu, INFINITE = 0x7f800000u;  // bits of an fp32: all but the sign; an infinity

// One group of `count` elements (at most GROUP): its codes, and what they lose in `error` where that is given.
static inline void pack_group(const float* gradient, float* error, int64_t count, float* scale, int8_t* codes) {
    float values[GROUP];
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        values[i] = error ? gradient[i] + error[i] : gradient[i];
        uint32_t bits;
        std::memcpy(&bits, &values[i], sizeof bits);
        bits &= MAGNITUDE;  // in the order of magnitudes; infinities, then NaNs, are the largest
        largest = bits > largest ? bits : largest;
    }
    if (largest >= INFINITE) {  // sent as NaN, which every sum shows; the error stays what it was
        *scale = std::numeric_limits<float>::quiet_NaN();
        std::memset(codes, 0, count);
        return;
    }
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof magnitude);
    const float step = magnitude / 127.0f;
    *scale = step;
    if (!(step > 0.0f)) {  // zeros, or too small for a step
        std::memset(codes, 0, count);
        if (error) std::memcpy(error, values, count * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float code = std::rint(values[i] / step);
        code = code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code;
        codes[i] = int8_t(int32_t(code));
        if (error) error[i] = values[i] - code * step;
    }
}

static int64_t rounded_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// The scales that stand before the codes of `size` elements, filled up.
static int64_t scale_bytes(int64_t size) { return rounded_up((size + GROUP - 1) / GROUP * sizeof(float), ALIGNMENT); }

static int64_t packed_bytes(int64_t size) { return scale_bytes(size) + rounded_up(size, ALIGNMENT); }

constexpr int64_t LARGEST = int64_t(1) << 60;  // elements: what they take does not overflow

static Span span_of(const Tensor& tensor, int64_t bytes, bool written, int64_t column) {
    return {tensor.data, tensor.data + bytes, written, 0, column};
}

struct PackArguments {  // as in compression.py
    const int64_t* descriptors;  // gradient fp32 [size], packed uint8 [packed_bytes], and with `keep` the error fp32 [size]
    int64_t length;              // of `descriptors`, in numbers
    int64_t keep;                // whether there is an error
};

static int64_t pack(const PackArguments& a) {
    enum { GRADIENT, PACKED, ERROR, COLUMNS };
    Tensor tensors[COLUMNS];
    const int64_t columns = a.keep ? COLUMNS : ERROR;
    Reader reader{a.descriptors, a.length, columns};
    std::vector<Span> spans;
    for (int64_t column = 0; column < columns; column++) {
        Tensor& tensor = tensors[column];
        if (!reader.next(tensor)) return refusal(WRONG_ARGUMENTS, 0, column);
        Reason reason = column == PACKED ? checked(tensor, UINT8) : checked(tensor, FLOAT32);
        const int64_t size = tensors[GRADIENT].count;
        const bool fits = size <= LARGEST && tensor.count == (column == PACKED ? packed_bytes(size) : size);
        if (!reason && (tensor.dims != 1 || !fits)) reason = WRONG_SHAPE;
        if (!reason && column == PACKED && reinterpret_cast<uintptr_t>(tensor.data) % sizeof(float)) reason = UNALIGNED;
        if (reason) return refusal(reason, 0, column);
        const int64_t bytes = tensor.count * (column == PACKED ? 1 : int64_t(sizeof(float)));
        if (bytes) spans.push_back(span_of(tensor, bytes, column != GRADIENT, column));
    }
    if (!reader.done()) return refusal(WRONG_ARGUMENTS);
    if (const int64_t refused = overlap(spans)) return refused;

    const int64_t size = tensors[GRADIENT].count;
    const float* gradient = tensors[GRADIENT].as<float>();
    float *error = a.keep ? tensors[ERROR].as<float>() : nullptr, *scales = tensors[PACKED].as<float>();
    int8_t* codes = size ? reinterpret_cast<int8_t*>(tensors[PACKED].data + scale_bytes(size)) : nullptr;
    for (int64_t at = 0; at < size; at += GROUP) {
        float *kept = error ? error + at : nullptr, *scale = scales + at / GROUP;
        if (size - at >= GROUP)
            pack_group(gradient + at, kept, GROUP, scale, codes + at);  // a length that the compiler knows
        else
            pack_group(gradient + at, kept, size - at, scale, codes + at);
    }
    return FINE;
}

extern "C" int64_t pack_int8(const PackArguments* arguments) {
    if (!arguments) return refusal(WRONG_ARGUMENTS);
    try {
        return pack(*arguments);
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
}

struct AccumulateArguments {  // as in compression.py
    const int64_t* descriptors;  // sum fp32 [size], packed uint8 [ranks, packed_bytes], whose rows may have gaps between them
    int64_t length;              // of `descriptors`, in numbers
    int64_t add;                 // whether `sum` counts, or is only written
    float factor;
};

struct Parts {
    float* sum;
    bool add;
    float factor;
    int64_t ranks, bytes_of_rank;  // from the start of one rank's part to that of the next
    const char* packed;
    int64_t codes_from;  // bytes of scales before the codes
};

static inline void accumulate_group(const Parts& a, int64_t at, int64_t count) {
    float total[GROUP] = {};
    for (int64_t rank = 0; rank < a.ranks; rank++) {
        const char* part = a.packed + rank * a.bytes_of_rank;
        float scale;
        std::memcpy(&scale, part + at / GROUP * sizeof scale, sizeof scale);
        const int8_t* codes = reinterpret_cast<const int8_t*>(part + a.codes_from) + at;
        for (int64_t i = 0; i < count; i++) total[i] += float(codes[i]) * scale;
    }
    float* sum = a.sum + at;
    for (int64_t i = 0; i < count; i++) sum[i] = a.add ? total[i] * a.factor + sum[i] : total[i] * a.factor;
}

static int64_t accumulate(const AccumulateArguments& a) {
    enum { SUM, PACKED };
    Tensor sum, packed;
    Reader reader{a.descriptors, a.length, 2};
    if (!reader.next(sum) || !reader.next(packed) || !reader.done()) return refusal(WRONG_ARGUMENTS);
    if (const Reason reason = checked(sum, FLOAT32)) return refusal(reason, 0, SUM);
    if (sum.dims != 1 || sum.count > LARGEST) return refusal(WRONG_SHAPE, 0, SUM);
    if (packed.dtype != UINT8) return refusal(WRONG_DTYPE, 0, PACKED);
    const int64_t each = packed_bytes(sum.count);
    if (packed.dims != 2 || !measure(packed) || packed.sizes[1] != each) return refusal(WRONG_SHAPE, 0, PACKED);
    const int64_t ranks = packed.sizes[0], apart = packed.strides[0];
    std::vector<Span> spans;
    if (ranks && each) {
        int64_t needed;
        if (packed.strides[1] != 1 || apart < 0) return refusal(NOT_DENSE, 0, PACKED);
        if (!packed.data) return refusal(NULL_POINTER, 0, PACKED);
        if (__builtin_mul_overflow(ranks - 1, apart, &needed) || __builtin_add_overflow(needed, each, &needed) || packed.bytes < needed)
            return refusal(TOO_LITTLE_MEMORY, 0, PACKED);
        spans.push_back(span_of(packed, needed, false, PACKED));
    }
    if (sum.count) spans.push_back(span_of(sum, sum.count * int64_t(sizeof(float)), true, SUM));
    if (const int64_t refused = overlap(spans)) return refused;

    const Parts parts{sum.as<float>(), a.add != 0, a.factor, ranks, apart, packed.data, scale_bytes(sum.count)};
    for (int64_t at = 0; at < sum.count; at += GROUP)
        if (sum.count - at >= GROUP)
            accumulate_group(parts, at, GROUP);
        else
            accumulate_group(parts, at, sum.count - at);
    return FINE;
}

extern "C" int64_t accumulate_int8(const AccumulateArguments* arguments) {
    if (!arguments) return refusal(WRONG_ARGUMENTS);
    try {
        return accumulate(*arguments);
    } catch (const std::bad_alloc&) {
        return refusal(OUT_OF_MEMORY);
    }
}
