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
