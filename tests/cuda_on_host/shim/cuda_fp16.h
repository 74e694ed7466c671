// float16 on the host, rounded to nearest even as the device does, with denormals (cvt.rn.f16.f32: NaN becomes 0x7FFF).
#pragma once
#include "cuda_on_host.h"

struct alignas(2) __half { unsigned short bits; };

inline float __half2float(__half value) {
    unsigned sign = unsigned(value.bits & 0x8000) << 16, exponent = value.bits >> 10 & 31, mantissa = value.bits & 0x3FF;
    if (exponent == 31) return __uint_as_float(sign | 0x7F800000 | mantissa << 13);
    float magnitude = exponent ? std::ldexp(float(mantissa | 0x400), int(exponent) - 25) : std::ldexp(float(mantissa), -24);
    return sign ? -magnitude : magnitude;
}
inline __half __float2half_rn(float value) {
    unsigned short sign = (unsigned short)(__float_as_uint(value) >> 16 & 0x8000);
    double magnitude = std::fabs(double(value));
    if (std::isnan(value)) return {0x7FFF};
    if (magnitude >= 65520.0) return {(unsigned short)(sign | 0x7C00)};
    int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), -14) : -14;
    auto steps = (unsigned)std::nearbyint(std::ldexp(magnitude, 10 - exponent));  // in units of the last place; 2048 carries on
    return {(unsigned short)(sign | ((exponent + 14) * 1024 + steps))};
}
