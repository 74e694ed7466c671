// Gradients as int8 with an fp32 scale for each GROUP of elements, and their sums: compression.cu for the CPU, in one pass over
// memory. The bits are those of the plain-torch reference, so it is compiled without contraction to fused multiply-adds.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

constexpr int64_t GROUP = 256;
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

struct PackArguments {  // as in compression.cu
    const float* gradient;  // [size]
    float* error;           // [size], or null: nothing is kept
    int64_t size;
    float* scales;  // one of each group
    int8_t* codes;  // [size]
};

extern "C" void pack_int8(const PackArguments* arguments) {
    const PackArguments a = *arguments;
    for (int64_t at = 0; at < a.size; at += GROUP) {
        float *kept = a.error ? a.error + at : nullptr, *scale = a.scales + at / GROUP;
        if (a.size - at >= GROUP)
            pack_group(a.gradient + at, kept, GROUP, scale, a.codes + at);  // a length that the compiler knows
        else
            pack_group(a.gradient + at, kept, a.size - at, scale, a.codes + at);
    }
}

struct AccumulateArguments {  // as in compression.cu
    float* sum;               // [size]
    int64_t size;
    int add;  // whether `sum` counts, or is only written
    float factor;
    int ranks;
    int64_t bytes_of_rank;  // from the start of one rank's part to that of the next
    const uint8_t* packed;
    int64_t codes_from;  // bytes of scales before the codes
};

static inline void accumulate_group(const AccumulateArguments& a, int64_t at, int64_t count) {
    float total[GROUP] = {};
    for (int rank = 0; rank < a.ranks; rank++) {
        const uint8_t* part = a.packed + rank * a.bytes_of_rank;
        float scale;
        std::memcpy(&scale, part + at / GROUP * sizeof scale, sizeof scale);
        const int8_t* codes = reinterpret_cast<const int8_t*>(part + a.codes_from) + at;
        for (int64_t i = 0; i < count; i++) total[i] += float(codes[i]) * scale;
    }
    float* sum = a.sum + at;
    for (int64_t i = 0; i < count; i++) sum[i] = a.add ? total[i] * a.factor + sum[i] : total[i] * a.factor;
}

extern "C" void accumulate_int8(const AccumulateArguments* arguments) {
    const AccumulateArguments a = *arguments;
    for (int64_t at = 0; at < a.size; at += GROUP)
        if (a.size - at >= GROUP)
            accumulate_group(a, at, GROUP);
        else
            accumulate_group(a, at, a.size - at);
}
