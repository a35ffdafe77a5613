/** SHA-256, SHA-512 and texts of bytes. Where the browser keeps WebCrypto back (pages without https), this hashes. */

/** @param {Uint8Array} bytes @returns {Promise<string>} in hex */
export async function sha256(bytes) {
  if (globalThis.crypto?.subtle) return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
  return hex(plainSha256(bytes));
}

export function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function fromHex(text) {
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

export function ascii(text) {
  return new TextEncoder().encode(text);
}

/** Return several runs of bytes as one. */
export function joined(...parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let place = 0;
  for (const part of parts) {
    all.set(part, place);
    place += part.length;
  }
  return all;
}

/** Return the bytes of base64 or base64url, padded or not; null if the text is neither. */
export function fromBase64(text) {
  const plain = text.replaceAll("-", "+").replaceAll("_", "/").replace(/=+$/, "");
  if (!/^[A-Za-z0-9+/]+$/.test(plain) || plain.length % 4 === 1) return null;
  return Uint8Array.from(atob(plain), (letter) => letter.charCodeAt(0));
}

/** Return bytes as padded base64url. */
export function toBase64(bytes) {
  let text = "";
  for (let place = 0; place < bytes.length; place += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(place, place + 0x8000));
  }
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_");
}

/** SHA-256 as FIPS 180-4 writes it. @param {Uint8Array} bytes @returns {Uint8Array} */
export function plainSha256(bytes) {
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const words = new DataView(padded.buffer);
  words.setUint32(padded.length - 8, Math.floor(bytes.length / 2 ** 29));
  words.setUint32(padded.length - 4, (bytes.length * 8) % 2 ** 32);
  const state = Uint32Array.from(STATE);
  const w = new Uint32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let t = 0; t < 16; t += 1) w[t] = words.getUint32(block + 4 * t);
    for (let t = 16; t < 64; t += 1) {
      const low = turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ (w[t - 15] >>> 3);
      const high = turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ (w[t - 2] >>> 10);
      w[t] = w[t - 16] + low + w[t - 7] + high;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let t = 0; t < 64; t += 1) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + ROUNDS[t] + w[t]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [a, b, c, d, e, f, g, h] = [(one + two) | 0, a, b, c, (d + one) | 0, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((value, place) => {
      state[place] += value;
    });
  }
  const result = new DataView(new ArrayBuffer(32));
  state.forEach((value, place) => result.setUint32(4 * place, value));
  return new Uint8Array(result.buffer);
}

function turn(word, by) {
  return (word >>> by) | (word << (32 - by));
}

/** SHA-512 as FIPS 180-4 writes it, of several runs of bytes. @returns {Uint8Array} */
export function sha512(...parts) {
  const bytes = joined(...parts);
  const padded = new Uint8Array(Math.ceil((bytes.length + 17) / 128) * 128);
  padded.set(bytes);
  padded[bytes.length] = 0x80;
  const words = new DataView(padded.buffer);
  words.setBigUint64(padded.length - 8, BigInt(bytes.length) * 8n);
  const state = Int32Array.from(WIDE_STATE); // each number of 64 bits is two of 32, the higher first
  const w = new Int32Array(160);
  for (let block = 0; block < padded.length; block += 128) {
    for (let t = 0; t < 32; t += 1) w[t] = words.getInt32(block + 4 * t);
    for (let t = 32; t < 160; t += 2) {
      const [a, b, c, d] = [w[t - 30], w[t - 29], w[t - 4], w[t - 3]];
      const low =
        (part(b, a, 1) ^ part(b, a, 8) ^ ((b >>> 7) | (a << 25))) >>> 0;
      const high = part(a, b, 1) ^ part(a, b, 8) ^ (a >>> 7);
      const low2 = (part(d, c, 19) ^ part(c, d, 29) ^ ((d >>> 6) | (c << 26))) >>> 0;
      const high2 = part(c, d, 19) ^ part(d, c, 29) ^ (c >>> 6);
      const sum = low + low2 + (w[t - 13] >>> 0) + (w[t - 31] >>> 0);
      w[t + 1] = sum;
      w[t] = high + high2 + w[t - 14] + w[t - 32] + Math.floor(sum / 2 ** 32);
    }
    const v = Int32Array.from(state);
    for (let t = 0; t < 160; t += 2) {
      const [a, b, e, f] = [v[0], v[1], v[8], v[9]];
      const one =
        (v[15] >>> 0) +
        ((part(f, e, 14) ^ part(f, e, 18) ^ part(e, f, 9)) >>> 0) +
        (((f & v[11]) ^ (~f & v[13])) >>> 0) +
        (WIDE_ROUNDS[t + 1] >>> 0) +
        (w[t + 1] >>> 0);
      const oneHigh =
        (v[14] +
          (part(e, f, 14) ^ part(e, f, 18) ^ part(f, e, 9)) +
          ((e & v[10]) ^ (~e & v[12])) +
          WIDE_ROUNDS[t] +
          w[t] +
          Math.floor(one / 2 ** 32)) |
        0;
      const two =
        ((part(b, a, 28) ^ part(a, b, 2) ^ part(a, b, 7)) >>> 0) + (((b & v[3]) ^ (b & v[5]) ^ (v[3] & v[5])) >>> 0);
      const twoHigh =
        ((part(a, b, 28) ^ part(b, a, 2) ^ part(b, a, 7)) +
          ((a & v[2]) ^ (a & v[4]) ^ (v[2] & v[4])) +
          Math.floor(two / 2 ** 32)) |
        0;
      v.copyWithin(2, 0, 14);
      const low = (v[9] >>> 0) + (one >>> 0);
      v[8] += oneHigh + Math.floor(low / 2 ** 32);
      v[9] = low;
      const all = (one >>> 0) + (two >>> 0);
      v[0] = oneHigh + twoHigh + Math.floor(all / 2 ** 32);
      v[1] = all;
    }
    for (let t = 0; t < 16; t += 2) {
      const low = (state[t + 1] >>> 0) + (v[t + 1] >>> 0);
      state[t] += v[t] + Math.floor(low / 2 ** 32);
      state[t + 1] = low;
    }
  }
  const result = new DataView(new ArrayBuffer(64));
  state.forEach((value, place) => result.setInt32(4 * place, value));
  return new Uint8Array(result.buffer);
}

/** Return one half of a number of 64 bits, turned right by fewer than 32 places: of the same half, with the other's. */
function part(same, other, by) {
  return (same >>> by) | (other << (32 - by));
}

const PRIMES = firstPrimes(80);
const ROUNDS = PRIMES.slice(0, 64).map((prime) => fraction(Math.cbrt(prime)));
const STATE = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const WIDE_ROUNDS = PRIMES.flatMap((prime) => wideFraction(prime, 3n));
const WIDE_STATE = PRIMES.slice(0, 8).flatMap((prime) => wideFraction(prime, 2n));

function firstPrimes(wanted) {
  const primes = [];
  for (let number = 2; primes.length < wanted; number += 1) {
    if (primes.every((prime) => number % prime)) primes.push(number);
  }
  return primes;
}

/** Return the first 32 bits after the point. */
function fraction(number) {
  return Math.floor((number - Math.floor(number)) * 2 ** 32) >>> 0;
}

/** Return the first 64 bits after the point of a root, as two numbers of 32. */
function wideFraction(number, degree) {
  const wanted = BigInt(number) << (64n * degree);
  let root = 0n;
  for (let bit = 1n << 70n; bit; bit >>= 1n) if ((root + bit) ** degree <= wanted) root += bit;
  return [Number((root >> 32n) & 0xffffffffn) | 0, Number(root & 0xffffffffn) | 0];
}
