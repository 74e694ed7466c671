// Which elements dropout keeps, by the random numbers of the compiler's code: Philox4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011), whose counter is the element's place and whose key is the seed. Only the first of a counter's four words is used.
// The inner loops are over LANES independent counters, so the C++ compiler makes vector instructions of them.
#include <algorithm>
#include <cstdint>

constexpr int64_t LANES = 64;

static inline void first_words(uint32_t seed, uint32_t place, uint32_t* words) {
    uint32_t b[LANES] = {}, c[LANES] = {}, d[LANES] = {}, key = seed, other_key = 0;
    for (int lane = 0; lane < LANES; lane++) words[lane] = place + lane;
    for (int round = 0; round < 10; round++) {
        for (int lane = 0; lane < LANES; lane++) {
            const uint64_t one = uint64_t{0xD2511F53u} * words[lane], other = uint64_t{0xCD9E8D57u} * c[lane];
            words[lane] = uint32_t(other >> 32) ^ b[lane] ^ key;
            c[lane] = uint32_t(one >> 32) ^ d[lane] ^ other_key;
            b[lane] = uint32_t(other);
            d[lane] = uint32_t(one);
        }
        key += 0x9E3779B9u;
        other_key += 0xBB67AE85u;
    }
}

// kept[i] is 1 where the number in [0, 1) of element i is above the threshold, else 0.
extern "C" void dropout_keep(uint8_t* kept, int64_t count, int64_t seed, float threshold, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < count; begin += LANES) {
        uint32_t words[LANES];
        uint8_t above[LANES];
        first_words(uint32_t(seed), uint32_t(begin), words);
        for (int lane = 0; lane < LANES; lane++) above[lane] = float(words[lane] & 0x7fffffffu) * 4.6566127342e-10f > threshold;
        std::copy_n(above, std::min(LANES, count - begin), kept + begin);
    }
}
