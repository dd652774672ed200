/* metal: row_products_${P}
    metal::float4 sums = metal::float4(0.0f);
#if METAL_HALVES
    // Four halves a load.
    device const metal::half4* w = (device const metal::half4*)raw_${P + 1};
    for (uint v = lane; v < size / 4u; v += 32u) {
        const metal::float4 x = left4(4u * v);
        for (uint r = 0u; r < ROWS; r++) {
            const uint row = metal::min(first + r, rows - 1u);
            sums[r] += metal::dot(metal::float4(w[(start + row * size) / 4u + v]), x);
        }
    }
#elif METAL_NIBBLES
    // Two lanes a block of 32 weights, each with eight of its bytes. A nibble is not shifted: its activation is divided by the power of two that it
    // is too large by. So are fifth bits.
    device const ushort* w = (device const ushort*)raw_${P + 1};
    const uint side = lane % 2u;
    const metal::float4 low = metal::float4(1.0f, 1.0f / 256.0f, 1.0f, 1.0f / 256.0f);
    for (uint b = lane / 2u; b < size / 32u; b += 16u) {
        const uint at = 32u * b + 8u * side;
        const metal::float4 x0 = left4(at);
        const metal::float4 x1 = left4(at + 4u);
        const metal::float4 x2 = left4(at + 16u);
        const metal::float4 x3 = left4(at + 20u);
        const float total = metal::dot(x0 + x1 + x2 + x3, metal::float4(1.0f));
        const metal::float4 y0 = x0 * low;
        const metal::float4 y1 = x1 * low;
        const metal::float4 y2 = x2 * low * 0.0625f;
        const metal::float4 y3 = x3 * low * 0.0625f;
#if METAL_FIFTH
        const metal::float4 fifth = metal::float4(16.0f, 8.0f, 4.0f, 2.0f);
        const metal::float4 z0 = x0 * fifth;
        const metal::float4 z1 = x1 * fifth * 0.0625f;
        const metal::float4 z2 = x2 * fifth;
        const metal::float4 z3 = x3 * fifth * 0.0625f;
#endif
        for (uint r = 0u; r < ROWS; r++) {
            const uint row = metal::min(first + r, rows - 1u);
            device const ushort* q = w + ${METAL_WORDS}u * ((start + row * size) / 32u + b);
            device const ushort* l = q + ${METAL_QUANTS}u + 4u * side;
            const uint a = l[0];
            const uint c = l[1];
            const uint d = l[2];
            const uint e = l[3];
            float sum = metal::dot(y0, metal::float4(float(a & 15u), float(a & 0xF00u), float(c & 15u), float(c & 0xF00u)))
                + metal::dot(y1, metal::float4(float(d & 15u), float(d & 0xF00u), float(e & 15u), float(e & 0xF00u)))
                + metal::dot(y2, metal::float4(float(a & 0xF0u), float(a & 0xF000u), float(c & 0xF0u), float(c & 0xF000u)))
                + metal::dot(y3, metal::float4(float(d & 0xF0u), float(d & 0xF000u), float(e & 0xF0u), float(e & 0xF000u)));
#if METAL_FIFTH
            // Those of the first 16 weights in one word, those of the others in the next.
            const uint h = uint(q[${METAL_QUANTS - 2}u]) >> 8u * side;
            const uint g = uint(q[${METAL_QUANTS - 1}u]) >> 8u * side;
            sum += metal::dot(z0, metal::float4(float(h & 1u), float(h & 2u), float(h & 4u), float(h & 8u)))
                + metal::dot(z1, metal::float4(float(h & 16u), float(h & 32u), float(h & 64u), float(h & 128u)))
                + metal::dot(z2, metal::float4(float(g & 1u), float(g & 2u), float(g & 4u), float(g & 8u)))
                + metal::dot(z3, metal::float4(float(g & 16u), float(g & 32u), float(g & 64u), float(g & 128u)));
#endif
#if METAL_LEAST
            sums[r] += float(as_type<half>(q[0])) * sum + float(as_type<half>(q[1])) * total;
#else
            sums[r] += float(as_type<half>(q[0])) * (sum - ${METAL_MIDDLE}.0f * total);
#endif
        }
    }
#elif METAL_Q8_0
    // Four lanes a block of 34 bytes, each with eight of its integers.
    device const ushort* w = (device const ushort*)raw_${P + 1};
    const uint part = lane % 4u;
    for (uint b = lane / 4u; b < size / 32u; b += 8u) {
        const uint at = 32u * b + 8u * part;
        const metal::float4 x0 = left4(at);
        const metal::float4 x1 = left4(at + 4u);
        for (uint r = 0u; r < ROWS; r++) {
            const uint row = metal::min(first + r, rows - 1u);
            device const ushort* q = w + 17u * ((start + row * size) / 32u + b);
            // The upper byte of each word with its sign, and the lower one moved to its place.
            const int a = int(q[1u + 4u * part]) << 16;
            const int c = int(q[2u + 4u * part]) << 16;
            const int d = int(q[3u + 4u * part]) << 16;
            const int e = int(q[4u + 4u * part]) << 16;
            const float sum = metal::dot(x0, metal::float4(float((a << 8) >> 24), float(a >> 24), float((c << 8) >> 24), float(c >> 24)))
                + metal::dot(x1, metal::float4(float((d << 8) >> 24), float(d >> 24), float((e << 8) >> 24), float(e >> 24)));
            sums[r] += float(as_type<half>(q[0])) * sum;
        }
    }
#elif METAL_PARTS
    // Sixteen lanes a block of 256 weights, each with two words: eight weights of one part of 32, and eight of the next.
    device const uint* w = (device const uint*)raw_${P + 1};
    const uint chunk = lane % 16u / 4u;
    const uint shift = 16u * (chunk % 2u);
    const metal::float4 low = metal::float4(1.0f, 1.0f / 256.0f, 1.0f / 65536.0f, 1.0f / 16777216.0f);
    for (uint b = lane / 16u; b < size / 256u; b += 2u) {
        const uint at = 256u * b + 64u * chunk + 8u * (lane % 4u);
        const metal::float4 x0 = left4(at);
        const metal::float4 x1 = left4(at + 4u);
        const metal::float4 x2 = left4(at + 32u);
        const metal::float4 x3 = left4(at + 36u);
        const float total0 = metal::dot(x0 + x1, metal::float4(1.0f));
        const float total1 = metal::dot(x2 + x3, metal::float4(1.0f));
        for (uint r = 0u; r < ROWS; r++) {
            const uint row = metal::min(first + r, rows - 1u);
            device const uint* q = w + ${METAL_WORDS}u * ((start + row * size) / 256u + b);
            const metal::float2 by = metal::float2(as_type<metal::half2>(q[0]));
            // Scales and least values of both parts, six bits each: of the first four parts together, of the others in two pieces.
            const uint near = chunk < 2u ? q[1] >> shift & 0x3F3Fu : (q[3] >> shift & 0x0F0Fu) | (q[1] >> shift >> 2u & 0x3030u);
            const uint least = chunk < 2u ? q[2] >> shift & 0x3F3Fu : (q[3] >> shift >> 4u & 0x0F0Fu) | (q[2] >> shift >> 2u & 0x3030u);
            device const uint* l = q + ${METAL_QUANTS}u + 8u * chunk + 2u * (lane % 4u);
            const uint a = l[0];
            const uint c = l[1];
#if METAL_FIFTH
            // Fifth bits: a byte for each of 32 places, with a bit for each part.
            const uint e = q[4u + 2u * (lane % 4u)] >> 2u * chunk;
            const uint g = q[5u + 2u * (lane % 4u)] >> 2u * chunk;
            const uint a0 = (a & 0x0F0F0F0Fu) | (e & 0x01010101u) << 4u;
            const uint c0 = (c & 0x0F0F0F0Fu) | (g & 0x01010101u) << 4u;
            const uint a1 = (a & 0xF0F0F0F0u) >> 4u | (e & 0x02020202u) << 3u;
            const uint c1 = (c & 0xF0F0F0F0u) >> 4u | (g & 0x02020202u) << 3u;
            const float sum0 = metal::dot(x0 * low, metal::float4(float(a0 & 31u), float(a0 & 0x1F00u), float(a0 & 0x1F0000u), float(a0 & 0x1F000000u)))
                + metal::dot(x1 * low, metal::float4(float(c0 & 31u), float(c0 & 0x1F00u), float(c0 & 0x1F0000u), float(c0 & 0x1F000000u)));
            const float sum1 = metal::dot(x2 * low, metal::float4(float(a1 & 31u), float(a1 & 0x1F00u), float(a1 & 0x1F0000u), float(a1 & 0x1F000000u)))
                + metal::dot(x3 * low, metal::float4(float(c1 & 31u), float(c1 & 0x1F00u), float(c1 & 0x1F0000u), float(c1 & 0x1F000000u)));
#else
            const float sum0 = metal::dot(x0 * low, metal::float4(float(a & 0xFu), float(a & 0xF00u), float(a & 0xF0000u), float(a & 0xF000000u)))
                + metal::dot(x1 * low, metal::float4(float(c & 0xFu), float(c & 0xF00u), float(c & 0xF0000u), float(c & 0xF000000u)));
            const float sum1 = 0.0625f * metal::dot(x2 * low, metal::float4(float(a & 0xF0u), float(a & 0xF000u), float(a & 0xF00000u), float(a & 0xF0000000u)))
                + 0.0625f * metal::dot(x3 * low, metal::float4(float(c & 0xF0u), float(c & 0xF000u), float(c & 0xF00000u), float(c & 0xF0000000u)));
#endif
            sums[r] += by.x * (float(near & 63u) * sum0 + float(near >> 8u) * sum1)
                - by.y * (float(least & 63u) * total0 + float(least >> 8u) * total1);
        }
    }
#elif METAL_CODES
    // Two lanes a group of 32 weights that are codes of four bits, each with eight of its bytes.
    const uint side = lane % 2u;
    for (uint g = lane / 2u; g < size / 32u; g += 16u) {
        const uint at = 32u * g + 8u * side;
        const metal::float4 x0 = left4(at);
        const metal::float4 x1 = left4(at + 4u);
        const metal::float4 x2 = left4(at + 16u);
        const metal::float4 x3 = left4(at + 20u);
#if METAL_MXFP4
        const float total = metal::dot(x0 + x1 + x2 + x3, metal::float4(1.0f));
        const metal::float4 low = metal::float4(1.0f, 1.0f / 256.0f, 1.0f / 65536.0f, 1.0f / 16777216.0f);
        const metal::float4 y0 = x0 * low;
        const metal::float4 y1 = x1 * low;
        const metal::float4 y2 = x2 * low;
        const metal::float4 y3 = x3 * low;
#endif
        for (uint r = 0u; r < ROWS; r++) {
            const uint group = (start + metal::min(first + r, rows - 1u) * size) / 32u + g;
#if METAL_MXFP4
            // Blocks of 17 bytes, the first of which is a power of two.
            device const uchar* q = (device const uchar*)raw_${P + 1} + 17u * group;
            device const uchar* l = q + 1u + 8u * side;
            const uint a = uint(l[0]) | uint(l[1]) << 8u | uint(l[2]) << 16u | uint(l[3]) << 24u;
            const uint c = uint(l[4]) | uint(l[5]) << 8u | uint(l[6]) << 16u | uint(l[7]) << 24u;
            // Half of the power, as the values are doubled; the two smallest are subnormal.
            const uint power = uint(q[0]);
            const float by = as_type<float>(power < 2u ? 0x00200000u << power : (power - 1u) << 23u);
            // Values of four bits, doubled and 12 more, a byte each: 0, 1, 2, 3, 4, 6, 8 and 12, with a sign.
            const metal::uint4 codes = metal::uint4(a, c, a >> 4u, c >> 4u);
            const metal::uint4 upper = codes >> 2u & 0x01010101u;
            const metal::uint4 size_of = (codes & 0x07070707u) + (codes & 3u * upper) + 2u * (upper & codes & codes >> 1u);
            const metal::uint4 v = 0x0C0C0C0Cu + size_of - 2u * (size_of & 255u * (codes >> 3u & 0x01010101u));
            const float sum = metal::dot(y0, metal::float4(float(v.x & 0xFFu), float(v.x & 0xFF00u), float(v.x & 0xFF0000u), float(v.x & 0xFF000000u)))
                + metal::dot(y1, metal::float4(float(v.y & 0xFFu), float(v.y & 0xFF00u), float(v.y & 0xFF0000u), float(v.y & 0xFF000000u)))
                + metal::dot(y2, metal::float4(float(v.z & 0xFFu), float(v.z & 0xFF00u), float(v.z & 0xFF0000u), float(v.z & 0xFF000000u)))
                + metal::dot(y3, metal::float4(float(v.w & 0xFFu), float(v.w & 0xFF00u), float(v.w & 0xFF0000u), float(v.w & 0xFF000000u)));
            sums[r] += by * (sum - 12.0f * total);
#else
#if METAL_IQ4_XS
            // Eight groups a block, whose scales have four bits in one word and two in another.
            device const uint* q = (device const uint*)raw_${P + 1} + 34u * (group / 8u);
            const uint scale = (q[1] >> 4u * (group % 8u) & 15u) | (q[0] >> (16u + 2u * (group % 8u)) & 3u) << 4u;
            const float by = as_type<metal::half2>(q[0]).x * (float(scale) - 32.0f);
            device const uint* l = q + 2u + 4u * (group % 8u) + 2u * side;
            const uint a = l[0];
            const uint c = l[1];
#else
            device const ushort* q = (device const ushort*)raw_${P + 1} + 9u * group;
            const float by = float(as_type<half>(q[0]));
            device const ushort* l = q + 1u + 4u * side;
            const uint a = uint(l[0]) | uint(l[1]) << 16u;
            const uint c = uint(l[2]) | uint(l[3]) << 16u;
#endif
            // Sixteen levels, bytes with a sign: a word of four of them is chosen by the code's upper half, a byte of it by the lower one.
            float sum = 0.0f;
            for (uint i = 0u; i < 4u; i++) {
                const metal::float4 x = i == 0u ? x0 : i == 1u ? x1 : i == 2u ? x2 : x3;
                const uint word = (i % 2u == 0u ? a : c) >> 2u * (i & 2u);
                const metal::uint4 code = metal::uint4(word) >> metal::uint4(0u, 8u, 16u, 24u) & 15u;
                const metal::uint4 negative = metal::select(metal::uint4(0xBFAD9881u), metal::uint4(0xF6EADDCFu), (code & 4u) != 0u);
                const metal::uint4 positive = metal::select(metal::uint4(0x26190D01u), metal::uint4(0x71594535u), (code & 4u) != 0u);
                const metal::uint4 four = metal::select(negative, positive, (code & 8u) != 0u);
                const metal::uint4 level = four << (24u - 8u * (code & 3u));
                sum += metal::dot(x, metal::float4(float(int(level.x) >> 24), float(int(level.y) >> 24), float(int(level.z) >> 24), float(int(level.w) >> 24)));
            }
            sums[r] += by * sum;
#endif
        }
    }
#elif METAL_CRUMBS
    // Sixteen lanes a block of 256 weights, each with four weights of four parts of 32, whose low two bits lie in one word.
    const uint upper = lane % 16u / 8u;
    const uint four = lane % 8u;
    for (uint b = lane / 16u; b < size / 256u; b += 2u) {
        const uint at = 256u * b + 128u * upper + 4u * four;
        const metal::float4 x0 = left4(at);
        const metal::float4 x1 = left4(at + 32u);
        const metal::float4 x2 = left4(at + 64u);
        const metal::float4 x3 = left4(at + 96u);
        const metal::float4 totals = metal::float4(metal::dot(x0, metal::float4(1.0f)), metal::dot(x1, metal::float4(1.0f)),
            metal::dot(x2, metal::float4(1.0f)), metal::dot(x3, metal::float4(1.0f)));
        for (uint r = 0u; r < ROWS; r++) {
            const uint block = (start + metal::min(first + r, rows - 1u) * size) / 256u + b;
#if METAL_THIRD
            device const ushort* q = (device const ushort*)raw_${P + 1} + 55u * block;
            device const ushort* l = q + 16u + 16u * upper + 2u * four;
            const uint e = uint(l[0]) | uint(l[1]) << 16u;
            // Third bits: a byte for each of 32 places, with a bit for each part.
            const uint h = (uint(q[2u * four]) | uint(q[2u * four + 1u]) << 16u) >> 4u * upper;
            const metal::uint4 w = (metal::uint4(e, e >> 2u, e >> 4u, e >> 6u) & 0x03030303u) | (metal::uint4(h << 2u, h << 1u, h, h >> 1u) & 0x04040404u);
#else
            device const uint* q = (device const uint*)raw_${P + 1} + 21u * block;
            const uint e = q[4u + 8u * upper + four];
            const metal::uint4 w = metal::uint4(e, e >> 2u, e >> 4u, e >> 6u) & 0x03030303u;
#endif
            const metal::float4 parts = metal::float4(
                metal::dot(x0, metal::float4(float(w.x & 7u), float(w.x >> 8u & 7u), float(w.x >> 16u & 7u), float(w.x >> 24u))),
                metal::dot(x1, metal::float4(float(w.y & 7u), float(w.y >> 8u & 7u), float(w.y >> 16u & 7u), float(w.y >> 24u))),
                metal::dot(x2, metal::float4(float(w.z & 7u), float(w.z >> 8u & 7u), float(w.z >> 16u & 7u), float(w.z >> 24u))),
                metal::dot(x3, metal::float4(float(w.w & 7u), float(w.w >> 8u & 7u), float(w.w >> 16u & 7u), float(w.w >> 24u))));
            // A scale for 16 weights: those of the first 16 places in lower bytes, of the others in upper ones.
            const uint byte = 8u * (four / 4u);
#if METAL_THIRD
            const metal::uint4 near = metal::uint4(uint(q[48]), uint(q[49]), uint(q[50]), uint(q[51])) >> (byte + 4u * upper) & 15u;
            const metal::uint4 far = metal::uint4(uint(q[52]), uint(q[53]), uint(q[52]) >> 2u, uint(q[53]) >> 2u) >> (byte + 4u * upper) & 3u;
            const metal::float4 by = metal::float4(near | far << 4u) - 32.0f;
            sums[r] += float(as_type<half>(q[54])) * metal::dot(by, parts - 4.0f * totals);
#else
            const uint s = q[2u * upper] >> byte;
            const uint t = q[2u * upper + 1u] >> byte;
            const metal::uint4 both = metal::uint4(s, s >> 16u, t, t >> 16u);
            const metal::float2 factors = metal::float2(as_type<metal::half2>(q[20]));
            sums[r] += factors.x * metal::dot(metal::float4(both & 15u), parts) - factors.y * metal::dot(metal::float4(both >> 4u & 15u), totals);
#endif
        }
    }
#else
    // Sixteen lanes a block of Q6_K, 210 bytes, each with four weights of four parts of 32: their low four bits lie in two words, their high two bits in one.
    device const ushort* w = (device const ushort*)raw_${P + 1};
    const uint upper = lane % 16u / 8u;
    const uint four = lane % 8u;
    for (uint b = lane / 16u; b < size / 256u; b += 2u) {
        const uint at = 256u * b + 128u * upper + 4u * four;
        const metal::float4 x0 = left4(at);
        const metal::float4 x1 = left4(at + 32u);
        const metal::float4 x2 = left4(at + 64u);
        const metal::float4 x3 = left4(at + 96u);
        const metal::float4 totals = 32.0f * metal::float4(metal::dot(x0, metal::float4(1.0f)), metal::dot(x1, metal::float4(1.0f)),
            metal::dot(x2, metal::float4(1.0f)), metal::dot(x3, metal::float4(1.0f)));
        for (uint r = 0u; r < ROWS; r++) {
            const uint row = metal::min(first + r, rows - 1u);
            device const ushort* q = w + 105u * ((start + row * size) / 256u + b);
            device const ushort* l = q + 32u * upper + 2u * four;
            device const ushort* h = q + 64u + 16u * upper + 2u * four;
            const uint a = uint(l[0]) | uint(l[1]) << 16u;
            const uint c = uint(l[16]) | uint(l[17]) << 16u;
            const uint e = uint(h[0]) | uint(h[1]) << 16u;
            const uint w0 = (a & 0x0F0F0F0Fu) | (e << 4u & 0x30303030u);
            const uint w1 = (c & 0x0F0F0F0Fu) | (e << 2u & 0x30303030u);
            const uint w2 = (a >> 4u & 0x0F0F0F0Fu) | (e & 0x30303030u);
            const uint w3 = (c >> 4u & 0x0F0F0F0Fu) | (e >> 2u & 0x30303030u);
            const metal::float4 parts = metal::float4(
                metal::dot(x0, metal::float4(float(w0 & 63u), float(w0 >> 8u & 63u), float(w0 >> 16u & 63u), float(w0 >> 24u))),
                metal::dot(x1, metal::float4(float(w1 & 63u), float(w1 >> 8u & 63u), float(w1 >> 16u & 63u), float(w1 >> 24u))),
                metal::dot(x2, metal::float4(float(w2 & 63u), float(w2 >> 8u & 63u), float(w2 >> 16u & 63u), float(w2 >> 24u))),
                metal::dot(x3, metal::float4(float(w3 & 63u), float(w3 >> 8u & 63u), float(w3 >> 16u & 63u), float(w3 >> 24u))));
            // Scales with a sign, one for 16 weights, in the upper or the lower byte of every other word.
            device const ushort* s = q + 96u + 4u * upper;
            const int move = four < 4u ? 24 : 16;
            const metal::float4 by = metal::float4(float(int(uint(s[0]) << move) >> 24), float(int(uint(s[1]) << move) >> 24),
                float(int(uint(s[2]) << move) >> 24), float(int(uint(s[3]) << move) >> 24));
            sums[r] += float(as_type<half>(q[104])) * metal::dot(by, parts - totals);
        }
    }
#endif
    return sums;
*/
