// Sixteen values at a time, on any processor: the compiler makes of them what the processor has, one register with AVX-512, two with
// AVX2. Arithmetic is in fp32 without fused multiply-adds, so results have the same bits everywhere (but winograd.cpp's).
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

constexpr int64_t WIDTH = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(128)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint8_t Bytes __attribute__((vector_size(16)));

// The same numbers in 32 bits. GCC takes several instructions where AVX-512 has one.
#if defined(__AVX512F__)
static inline Words widened(Halves values) { return (Words)_mm512_cvtepu16_epi32((__m256i)values); }
static inline Words widened(Bytes values) { return (Words)_mm512_cvtepu8_epi32((__m128i)values); }
#else
static inline Words widened(Halves values) { return __builtin_convertvector(values, Words); }
static inline Words widened(Bytes values) { return widened(__builtin_convertvector(values, Halves)); }
#endif

struct BFloat16 {
    uint16_t bits;
};

static inline Floats load(const float* from) {
    Floats values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

static inline Floats load(const BFloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Floats)(widened(halves) << 16);
}

// To the nearest bfloat16, ties to even; NaN stays NaN.
static inline Halves nearest(Floats values) {
    const Words bits = (Words)values, nan = (bits >> 16) | 0x40u;
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return __builtin_convertvector(values != values ? nan : rounded, Halves);
}

static inline void store(float* to, Floats values) { std::memcpy(to, &values, sizeof values); }
static inline void store(BFloat16* to, Floats values) {
    const Halves halves = nearest(values);
    std::memcpy(to, &halves, sizeof halves);
}

// Stores values that are as stored already.
static inline void store_exact(float* to, Floats values) { store(to, values); }
static inline void store_exact(BFloat16* to, Floats values) {
    const Halves halves = __builtin_convertvector((Words)values >> 16, Halves);
    std::memcpy(to, &halves, sizeof halves);
}

// The largest value that is stored as 0.
constexpr float largest_zero(const float*) { return 0.0f; }
constexpr float largest_zero(const BFloat16*) { return 0x1p-134f; }

// How many of the sixteen there are: all, or the first ones. The others read as zeros and are not written.
struct All {};
struct First {
    int64_t count;
};

template <class Element>
static inline Floats load(const Element* from, All) {
    return load(from);
}
template <class Element>
static inline Floats load(const Element* from, First part) {
    Element values[WIDTH] = {};
    std::memcpy(values, from, part.count * sizeof(Element));
    return load(values);
}
template <class Element>
static inline void store(Element* to, Floats values, All) {
    store(to, values);
}
template <class Element>
static inline void store(Element* to, Floats values, First part) {
    Element all[WIDTH];
    store(all, values);
    std::memcpy(to, all, part.count * sizeof(Element));
}

template <class Element>
static inline void store_exact(Element* to, Floats values, All) {
    store_exact(to, values);
}
template <class Element>
static inline void store_exact(Element* to, Floats values, First part) {
    store(to, values, part);
}

// Adds sixteen values to as many sums in fp64.
static inline void add_to(double* sums, Floats values) {
    Doubles sum;
    std::memcpy(&sum, sums, sizeof sum);
    sum += __builtin_convertvector(values, Doubles);
    std::memcpy(sums, &sum, sizeof sum);
}

// Calls body(column, how many) for the columns from `from` to `to`.
template <class Body>
static inline void in_vectors(int64_t from, int64_t to, Body body) {
    for (; from + WIDTH <= to; from += WIDTH) body(from, All{});
    if (from < to) body(from, First{to - from});
}
