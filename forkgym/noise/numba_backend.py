"""The keyed sampler's kernels in numba: words, noise, the bounded argmax and per-token statistics of batches.

Imported by `sampling.py` at the first call only. Inputs are checked there; a row that allows no token is
reported by a negative result, never by an exception, because the kernels run without the interpreter lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from forkgym.noise.distribution import Float, Logits

Function = TypeVar("Function", bound=Callable[..., Any])

_CHUNK: Final = 512
_BLOCKS: Final = _CHUNK // 4
_BUCKETS: Final = 2048  # 64 octaves: probabilities below 2⁻⁶⁴ share the last one
_LARGEST_NOISE: Final = 22.88
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)


def _jit(function: Function) -> Function:
    """Compile without fast-math, because results must not depend on the vector width; releases the GIL.

    Compiled code is kept on disk; where neither the package's folder nor the user's cache can be written, it is
    compiled anew in each process.
    """
    options = {"error_model": "numpy", "nogil": True}
    try:
        return cast(Function, numba.njit(cache=True, **options)(function))
    except RuntimeError:  # numba's word for "no place to cache this file"
        return cast(Function, numba.njit(**options)(function))


def _inline(function: Function) -> Function:
    """Like `_jit`, for bodies that only vectorise inside their caller's loop."""
    return cast(Function, numba.njit(error_model="numpy", nogil=True, inline="always")(function))


@_inline
def _philox(key: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """One Philox4x32-10 block; all arguments uint64 holding 32 bits, except the 64-bit key."""
    k0 = key & _LOW
    k1 = key >> _HALF
    for _ in range(10):
        p0 = c0 * _M0
        p1 = c2 * _M1
        n0 = (p1 >> _HALF) ^ c1 ^ k0
        n2 = (p0 >> _HALF) ^ c3 ^ k1
        c1 = p1 & _LOW
        c3 = p0 & _LOW
        c0 = n0
        c2 = n2
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@_jit
def philox_block(key: Any, counter: Any) -> Any:
    """One Philox block: ``key`` uint64, ``counter`` uint64[4] of 32-bit words, result uint64[4]."""
    out = np.empty(4, np.uint64)
    out[0], out[1], out[2], out[3] = _philox(key, counter[0], counter[1], counter[2], counter[3])
    return out


@_jit
def _word(key: Any, token: int) -> Any:
    """The word of one token."""
    zero = np.uint64(0)
    w0, w1, w2, w3 = _philox(key, np.uint64(token >> 2), zero, zero, zero)
    lane = token & 3
    if lane == 0:
        return w0
    if lane == 1:
        return w1
    return w2 if lane == 2 else w3


@_jit
def _noise(word: Any) -> float:
    """−log(−log u) of one word, as in `forkgym.noise.gumbel.noise_of_words`."""
    return -math.log(-math.log((np.float64(word) + 0.5) * 2.0**-32))


@_jit
def fill_words(key: Any, out: Any) -> None:
    """Write the words of tokens 0 … n−1 into ``out`` (uint32[n])."""
    zero = np.uint64(0)
    whole = out.size // 4
    for block in range(whole):
        w0, w1, w2, w3 = _philox(key, np.uint64(block), zero, zero, zero)
        out[4 * block] = w0
        out[4 * block + 1] = w1
        out[4 * block + 2] = w2
        out[4 * block + 3] = w3
    for token in range(4 * whole, out.size):
        out[token] = _word(key, token)


@_jit
def fill_gumbel(key: Any, out: Any) -> None:
    """Write the noise of tokens 0 … n−1 into ``out`` (float64[n])."""
    zero = np.uint64(0)
    whole = out.size // 4
    for block in range(whole):
        w0, w1, w2, w3 = _philox(key, np.uint64(block), zero, zero, zero)
        out[4 * block] = _noise(w0)
        out[4 * block + 1] = _noise(w1)
        out[4 * block + 2] = _noise(w2)
        out[4 * block + 3] = _noise(w3)
    for token in range(4 * whole, out.size):
        out[token] = _noise(_word(key, token))


@_jit
def _smallest_winning_word(need: float) -> Any:
    """See `forkgym.noise.gumbel.smallest_winning_word`."""
    if need <= -3.2:
        return np.uint64(0)
    word = math.exp(-math.exp(-need)) * 4294967296.0 - 1.5
    if word <= 0.0:
        return np.uint64(0)
    if word >= 4294967295.0:
        return np.uint64(4294967295)
    return np.uint64(word)


@_jit
def _needed_noise(best: float, largest: float) -> float:
    """See `forkgym.noise.gumbel.needed_noise`."""
    if largest == -np.inf:
        return np.inf
    return best - largest - (1e-9 + 1e-14 * (abs(best) + abs(largest)))


def _codes(floating: type[Any], integer: type[Any]) -> npt.NDArray[Any]:
    """What `_row_largest` needs to order floats by integers of their width."""
    limits = np.iinfo(integer)
    infinity = int(np.array(np.inf, dtype=floating).view(integer))
    minus_infinity = int(np.array(-np.inf, dtype=floating).view(integer)) ^ int(limits.max)
    return np.array([limits.bits - 1, limits.max, limits.min, infinity, minus_infinity], dtype=integer)


_CODES: Final = {"f": _codes(np.float32, np.int32), "d": _codes(np.float64, np.int64)}


@_jit
def _row_largest(bits: Any, codes: Any, maxima_bits: Any, maxima: Any, temperature: float) -> float:
    """The largest ``logit / temperature`` of a row, NaN if it allows no token; also fills ``maxima``.

    ``maxima`` receives the largest logit of each chunk; ``maxima_bits`` is its integer view.
    Works on the integers whose order is the floats' order (``codes``, see `_codes`): their comparisons
    vectorise without fast-math, and NaNs fall outside [−inf, +inf] in that order instead of getting lost.
    """
    sign, low, smallest, infinity, minus_infinity = codes[0], codes[1], codes[2], codes[3], codes[4]
    row_low = minus_infinity
    row_high = minus_infinity
    for chunk in range(maxima.size):
        part = bits[chunk * _CHUNK : min((chunk + 1) * _CHUNK, bits.size)]
        high = smallest
        lowest = low
        for i in range(part.size):
            ordered = part[i] ^ ((part[i] >> sign) & low)
            high = max(high, ordered)
            lowest = min(lowest, ordered)
        maxima_bits[chunk] = high ^ ((high >> sign) & low)
        row_low = min(row_low, lowest)
        row_high = max(row_high, high)
    if row_low < minus_infinity or row_high >= infinity or row_high == minus_infinity:
        return np.nan
    largest = np.float64(maxima.max()) / temperature
    return largest if math.isfinite(largest) else np.nan


@_jit
def _block_maxima(key: Any, first: int, largest: Any) -> Any:
    """Write the largest of each block's four words into ``largest`` (uint32); return the largest of all."""
    zero = np.uint64(0)
    top = np.uint32(0)
    for i in range(largest.size):
        w0, w1, w2, w3 = _philox(key, np.uint64(first + i), zero, zero, zero)
        word = np.uint32(max(max(w0, w1), max(w2, w3)))
        largest[i] = word
        top = max(top, word)
    return np.uint64(top)


@_jit
def _bounded_argmax(row: Any, key: Any, temperature: float, maxima: Any, words: Any) -> int:
    """The winner of one checked row: see `forkgym.noise.gumbel.sample_bounded`.

    ``maxima`` holds the chunks' largest logits, ``words`` is scratch for one chunk's block maxima. The token
    with the largest logit comes first, then its chunk: on a peaked distribution they spare most chunks their
    Philox rounds. A token can win only if its word reaches ``smallest`` (the noise the chunk's largest logit
    needs) and its logit reaches ``lowest`` (what the chunk's largest noise leaves to be made up for).
    """
    zero = np.uint64(0)
    leader = 0
    for chunk in range(maxima.size):
        if maxima[chunk] > maxima[leader]:
            leader = chunk
    winner = leader * _CHUNK
    while row[winner] != maxima[leader]:
        winner += 1
    best = np.float64(row[winner]) / temperature + _noise(_word(key, winner))
    for turn in range(maxima.size):
        chunk = leader if turn == 0 else (turn - 1 if turn <= leader else turn)
        largest = np.float64(maxima[chunk]) / temperature
        need = _needed_noise(best, largest)
        if need > _LARGEST_NOISE:
            continue
        smallest = _smallest_winning_word(need)
        first = chunk * _BLOCKS
        blocks = min(_BLOCKS, (row.size + 3) // 4 - first)
        top = _block_maxima(key, first, words[:blocks])
        if top < smallest:
            continue
        reach = _noise(top)
        lowest = _needed_noise(best, reach) * temperature
        for i in range(blocks):
            if np.uint64(words[i]) < smallest:
                continue
            start = 4 * (first + i)
            stop = min(start + 4, row.size)
            possible = False
            for token in range(start, stop):
                possible = possible or row[token] >= lowest
            if not possible:
                continue
            block = _philox(key, np.uint64(first + i), zero, zero, zero)
            for token in range(start, stop):
                word = block[token - start]
                if word < smallest or row[token] < lowest or row[token] == -np.inf:
                    continue
                score = np.float64(row[token]) / temperature + _noise(word)
                if score > best or (score == best and token < winner):
                    best = score
                    winner = token
                    smallest = _smallest_winning_word(_needed_noise(best, largest))
                    lowest = _needed_noise(best, reach) * temperature
    return winner


@_jit
def _exp(x: float) -> float:
    """exp(x) for x ≤ 0 within 1.5 ulp, without branches so that loops over it vectorise; 0 below −708.

    Cody–Waite reduction to |r| ≤ ½·log 2, the Taylor polynomial of degree 13 (remainder < 2⁻⁵⁸), scaling by
    bits.
    """
    bounded = max(x, -708.0)
    # Adding 1.5·2⁵² rounds to the nearest integer k and leaves k in the low bits of the sum.
    shifted = bounded * 1.4426950408889634 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    r = (bounded - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10
    p = 1.6059043836821613e-10
    p = p * r + 2.08767569878681e-09
    p = p * r + 2.505210838544172e-08
    p = p * r + 2.755731922398589e-07
    p = p * r + 2.7557319223985893e-06
    p = p * r + 2.48015873015873e-05
    p = p * r + 0.0001984126984126984
    p = p * r + 0.001388888888888889
    p = p * r + 0.008333333333333333
    p = p * r + 0.041666666666666664
    p = p * r + 0.16666666666666666
    p = p * r + 0.5
    value = 1.0 + (r + r * r * p)
    scale = np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)).view(np.float64)
    return value * scale if x >= -708.0 else 0.0


@_jit
def _weights(row: Any, temperature: float, largest: float, weights: Any) -> Any:
    """Write exp(logit/τ − largest) into ``weights`` (float64[V]); their sum, in eight fixed lanes."""
    for i in range(row.size):
        weights[i] = _exp(np.float64(row[i]) / temperature - largest)
    lanes = np.zeros(8)
    whole = weights.size // 8 * 8
    for i in range(0, whole, 8):
        for lane in range(8):
            lanes[lane] += weights[i + lane]
    for i in range(whole, weights.size):
        lanes[i - whole] += weights[i]
    return lanes.sum()


@_jit
def _bucket(probability: float) -> Any:
    """A probability's place in `_nucleus`'s histogram: 32 buckets an octave, larger probabilities first."""
    octave_parts = np.float64(probability).view(np.int64) >> np.int64(47)
    return min(max(1023 * 32 - octave_parts, 0), _BUCKETS - 1)


@_jit
def _nucleus(probabilities: Any, top_p: float) -> Any:
    """Ids of the nucleus, ascending: see `forkgym.noise.nucleus`. Only the bucket that crosses is sorted."""
    floor = 0.5 * (1.0 - top_p) / probabilities.size if top_p < 1.0 - 1e-9 else 0.0
    masses = np.zeros(_BUCKETS)
    for i in range(probabilities.size):
        if probabilities[i] >= floor:
            masses[_bucket(probabilities[i])] += probabilities[i]
    mass = 0.0
    crossing = 0
    while crossing < _BUCKETS - 1 and mass + masses[crossing] < top_p:
        mass += masses[crossing]
        crossing += 1
    size = 0
    for i in range(probabilities.size):
        size += probabilities[i] >= floor and _bucket(probabilities[i]) == crossing
    ids = np.empty(size, np.int64)
    size = 0
    for i in range(probabilities.size):
        if probabilities[i] >= floor and _bucket(probabilities[i]) == crossing:
            ids[size] = i
            size += 1
    # Mergesort is stable: equal probabilities stay in the order of their ids.
    order = np.argsort(-probabilities[ids], kind="mergesort")
    last = -1  # an empty crossing bucket: rounding kept the running sum below top_p, so every bucket above is in
    for rank in range(order.size):
        last = ids[order[rank]]
        mass += probabilities[last]
        if mass >= top_p:
            break
    inside = np.empty(probabilities.size, np.bool_)
    for i in range(probabilities.size):
        bucket = _bucket(probabilities[i])
        inside[i] = probabilities[i] >= floor and (
            bucket < crossing
            or (
                bucket == crossing
                and (probabilities[i] > probabilities[last] or (probabilities[i] == probabilities[last] and i <= last))
            )
        )
    return np.nonzero(inside)[0]


@_jit
def _nucleus_argmax(row: Any, key: Any, temperature: float, largest: float, ids: Any) -> Any:
    """The winner among the tokens of a nucleus (ids ascending); ``largest`` is the largest scaled logit."""
    best = -np.inf
    winner = ids[0]
    smallest = np.uint64(0)
    for i in range(ids.size):
        scaled = np.float64(row[ids[i]]) / temperature
        if best - scaled > _LARGEST_NOISE + 1e-14 * abs(best):
            continue
        word = _word(key, ids[i])
        if word < smallest:
            continue
        score = scaled + _noise(word)
        if score > best:
            best = score
            winner = ids[i]
            smallest = _smallest_winning_word(_needed_noise(best, largest))
    return winner


@_jit
def _sample_rows(rows: Any, codes: Any, keys: Any, temperature: float, top_p: float) -> Any:
    """One token per row, −1 where a row allows none; ``codes`` is the entry of `_CODES` for the rows' dtype."""
    bits = rows.view(codes.dtype)
    maxima_bits = np.empty((rows.shape[1] + _CHUNK - 1) // _CHUNK, codes.dtype)
    maxima = maxima_bits.view(rows.dtype)
    tokens = np.empty(rows.shape[0], np.int64)
    words = np.empty(_BLOCKS, np.uint32)
    weights = np.empty(rows.shape[1] if top_p < 1.0 else 0)
    for index in range(rows.shape[0]):
        row = rows[index]
        largest = _row_largest(bits[index], codes, maxima_bits, maxima, temperature)
        if math.isnan(largest):
            tokens[index] = -1
        elif top_p < 1.0:
            total = _weights(row, temperature, largest, weights)
            for i in range(weights.size):
                weights[i] /= total
            ids = _nucleus(weights, top_p)
            tokens[index] = _nucleus_argmax(row, keys[index], temperature, largest, ids)
        else:
            tokens[index] = _bounded_argmax(row, keys[index], temperature, maxima, words)
    return tokens


@_jit
def _moments(weights: Any, row: Any, temperature: float, largest: float) -> Any:
    """Σ w, Σ w·s and Σ w² with s = logit/τ − largest, each in an order of eight fixed lanes."""
    sums = np.zeros((3, 8))
    whole = weights.size // 8 * 8
    for i in range(0, whole, 8):
        for lane in range(8):
            weight = weights[i + lane]
            # Clamped, so that 0 · (−inf) is 0; where the clamp acts, the weight is 0.
            shift = max(np.float64(row[i + lane]) / temperature - largest, -709.0)
            sums[0, lane] += weight
            sums[1, lane] += weight * shift
            sums[2, lane] += weight * weight
    for i in range(whole, weights.size):
        shift = max(np.float64(row[i]) / temperature - largest, -709.0)
        sums[0, i - whole] += weights[i]
        sums[1, i - whole] += weights[i] * shift
        sums[2, i - whole] += weights[i] * weights[i]
    return sums[0].sum(), sums[1].sum(), sums[2].sum()


@_jit
def _statistics_rows(rows: Any, codes: Any, tokens: Any, temperature: float, top_p: float, out: Any) -> int:
    """Fill ``out`` (float64[3, B]); the first row that allows no token, or −1."""
    bits = rows.view(codes.dtype)
    maxima_bits = np.empty((rows.shape[1] + _CHUNK - 1) // _CHUNK, codes.dtype)
    maxima = maxima_bits.view(rows.dtype)
    weights = np.empty(rows.shape[1])
    for index in range(rows.shape[0]):
        row = rows[index]
        largest = _row_largest(bits[index], codes, maxima_bits, maxima, temperature)
        if math.isnan(largest):
            return index
        total = _weights(row, temperature, largest, weights)
        chosen: Any = np.float64(row[tokens[index]]) / temperature - largest
        if top_p < 1.0:
            ids = _nucleus(weights / total, top_p)
            if not np.any(ids == tokens[index]):
                chosen = -np.inf
            total, first, second = _moments(weights[ids], row[ids], temperature, largest)
        else:
            total, first, second = _moments(weights, row, temperature, largest)
        out[0, index] = chosen - math.log(total)
        out[1, index] = max(math.log(total) - first / total, 0.0)
        out[2, index] = max(1.0 - second / (total * total), 0.0)
    return -1


def sample_rows(rows: Logits, keys: npt.NDArray[np.uint64], temperature: float, top_p: float) -> npt.NDArray[np.int64]:
    """One keyed token per row.

    Args:
        rows: C-contiguous ``float32[B, V]`` or ``float64[B, V]``.
        keys: ``uint64[B]``.
        temperature: positive.
        top_p: in (0, 1].

    Returns:
        ``int64[B]``; −1 for a row that holds NaN or +inf, is −inf everywhere or overflows at this
        temperature.
    """
    codes = _CODES[rows.dtype.char]
    tokens: npt.NDArray[np.int64] = _sample_rows(rows, codes, keys, temperature, top_p)
    return tokens


def statistics_rows(
    rows: Logits, tokens: npt.NDArray[np.int64], temperature: float, top_p: float
) -> tuple[int, Float, Float, Float]:
    """Log-probability, entropy and 1 − Σp² of one token per row under the behaviour distribution.

    Args:
        rows: C-contiguous ``float32[B, V]`` or ``float64[B, V]``.
        tokens: ``int64[B]``.
        temperature: positive.
        top_p: in (0, 1].

    Returns:
        The first row that allows no token (then the rest is meaningless) or −1, and three ``float64[B]``.
    """
    out = np.empty((3, rows.shape[0]))
    failed = int(_statistics_rows(rows, _CODES[rows.dtype.char], tokens, temperature, top_p, out))
    return failed, out[0], out[1], out[2]


def words(key64: int, n: int) -> npt.NDArray[np.uint32]:
    """`forkgym.noise.words` by these kernels (the same integers)."""
    out = np.empty(n, dtype=np.uint32)
    fill_words(np.uint64(key64), out)
    return out


def gumbel(key64: int, n: int) -> Float:
    """`forkgym.noise.gumbel` by these kernels (equal up to the last bit of the logarithm)."""
    out = np.empty(n)
    fill_gumbel(np.uint64(key64), out)
    return out
