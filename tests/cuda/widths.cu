/* SPDX-License-Identifier: MIT
 *
 * Control for widths.py: each kernel must show the instructions that its name says, and no others
 * of their kind, in the order that it says. If one does not, the table in widths.py is not true of
 * this toolkit.
 */
__global__ void words(const float *from, float *to) {
    to[threadIdx.x] = from[threadIdx.x];
}

__global__ void pairs(const float2 *from, float2 *to) {
    to[threadIdx.x] = from[threadIdx.x];
}

__global__ void quads(const float4 *from, float4 *to) {
    to[threadIdx.x] = from[threadIdx.x];
}

/* All loads before the first use; two before, and two after. */
__global__ void together(const float4 *from, float4 *to) {
    float4 x[4];
    for (int i = 0; i < 4; i++)
        x[i] = from[32 * i + threadIdx.x];
    __syncwarp();
    for (int i = 0; i < 4; i++)
        to[32 * i + threadIdx.x] = make_float4(x[i].x * x[i].y, x[i].y + x[i].z, x[i].w, x[i].x);
}

__global__ void apart(const float4 *from, float4 *to) {
    float4 a = from[threadIdx.x], b = from[32 + threadIdx.x];
    from += __float_as_int(a.x * b.y);
    float4 c = from[0], d = from[1];
    to[threadIdx.x] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    to[32 + threadIdx.x] = make_float4(c.x + d.x, c.y + d.y, c.z + d.z, c.w + d.w);
}

__global__ void strong(const float *from, float *to) {
    to[threadIdx.x] = *(const volatile float *)(from + threadIdx.x);
}

/* An array with a moving index cannot lie in registers. */
__global__ void spilled(const float *from, float *to, int n) {
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = from[threadIdx.x * 64 + i];
    for (int i = 0; i < n; i++)
        x[i * 7 & 63] += x[(i * 13 + n) & 63];
    to[threadIdx.x] = x[n & 63];
}
