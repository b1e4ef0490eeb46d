#!/usr/bin/env python3
"""SmoothQuant and GPTQ in numpy, by the formulas of the papers, for test_quantize_math.c: make_quantize_cases.py > data/quantize_cases.h

GPTQ here is algorithm 1 of Frantar et al. (2023), column by column in double precision on the whole matrix: the inverse of the damped
Hessian, its upper Cholesky factor, no blocks. Made with numpy 2.
"""

import numpy

N, K, T = 17, 67, 80
ALPHA, DAMPING = 0.8, 0.01


def c_array(kind, name, values, form):
    text = ", ".join(form.format(v) for v in numpy.asarray(values).ravel())
    lines, line = [], "   "
    for word in text.split(" "):
        if len(line) + len(word) > 118:
            lines.append(line)
            line = "   "
        line += " " + word
    print(f"static const {kind} {name}[] = {{\n" + "\n".join([*lines, line]) + "};")


def main():
    random = numpy.random.default_rng(5)
    # multiples of 2^-8, which a float holds; a few loud channels, one that is silent, correlated inputs
    w = numpy.round(random.normal(0, 1, (N, K)) * 256) / 256
    for row in w:  # no ties, which floats and doubles see differently; the largest, which is the scale, stays
        near = abs(abs(row * 127 / abs(row).max()) % 1 - 0.5) < 0.02
        row[near & (abs(row) < abs(row).max())] += 0.03125
    mix = random.normal(0, 1, (K, K)) * 0.4 + numpy.eye(K)
    x = numpy.round(random.normal(0, 1, (T, K)) @ mix * numpy.where(numpy.arange(K) % 17 == 3, 30, 1) * 256) / 256
    x[:, 40] = 0
    s = numpy.abs(x).max(0) ** ALPHA / numpy.abs(w).max(0) ** (1 - ALPHA)
    s[40] = 1
    h = x.T @ x
    scale = (numpy.abs(w).max(1) / 127).astype(numpy.float32).astype(float)
    damped = h + DAMPING * h.diagonal().mean() * numpy.eye(K)
    u = numpy.linalg.cholesky(numpy.linalg.inv(damped)).T
    rest, q = w.copy(), numpy.zeros((N, K), int)
    for j in range(K):
        q[:, j] = numpy.clip(numpy.rint(rest[:, j] / scale), -127, 127)
        error = (rest[:, j] - scale * q[:, j]) / u[j, j]
        rest[:, j:] -= numpy.outer(error, u[j, j:])
    plain = numpy.rint(w / scale[:, None])
    loss = [float(((x @ (w - scale[:, None] * m).T) ** 2).sum()) for m in (plain, q)]
    print("/* Made by make_quantize_cases.py. */")
    print(f"enum {{ CASE_N = {N}, CASE_K = {K}, CASE_T = {T} }};")
    c_array("short", "case_w", w * 256, "{:.0f}")
    c_array("int", "case_x", x * 256, "{:.0f}")
    c_array("double", "case_factors", s, "{:.9g}")
    c_array("int", "case_gptq", q, "{}")
    print(f"static const double case_loss_plain = {loss[0]:.9g}, case_loss_gptq = {loss[1]:.9g};")


if __name__ == "__main__":
    main()
