/**
 * Ed25519 signatures (RFC 8032), checked with the browser's own WebCrypto or, where it keeps that back (pages without
 * https, old browsers), with the arithmetic below. It takes no secrets, so its time may depend on what it is given.
 *
 * Both ways accept the same: encodings that are the only one of their number, and no point of small order.
 */

import { sha512 } from "./hashing.js";

const P = 2n ** 255n - 19n;
const ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const D = modulo(-121665n * inverse(121666n));
const ROOT = power(2n, (P - 1n) / 4n); // of -1
const ZERO = [0n, 1n, 1n, 0n]; // points are (X, Y, Z, T): x = X / Z, y = Y / Z, x y = T / Z
const BASE = decoded(encodedNumber(modulo(4n * inverse(5n))));

/**
 * Return whether a signature is right.
 *
 * @param {Uint8Array} key - 32 bytes
 * @param {Uint8Array} signature - 64 bytes
 * @param {Uint8Array} message
 * @returns {Promise<boolean>}
 */
export async function isSigned(key, signature, message) {
  if (key.length !== 32 || signature.length !== 64) return false;
  const [A, R] = [decoded(key), decoded(signature.subarray(0, 32))];
  const s = number(signature.subarray(32));
  if (!A || !R || s >= ORDER || isSmall(A) || isSmall(R)) return false;
  return (await byBrowser(key, signature, message)) ?? byHand(key, A, signature, message);
}

/** Return what WebCrypto says; null where it has no Ed25519. */
async function byBrowser(key, signature, message) {
  try {
    const known = await crypto.subtle.importKey("raw", key, { name: "Ed25519" }, false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", known, signature, message);
  } catch {
    return null; // there is no `subtle`, or it does not know the name: what is wrong is settled by hand
  }
}

/** Check that s B = R + h A, with R as it is encoded. */
function byHand(key, A, signature, message) {
  const R = signature.subarray(0, 32);
  const h = number(sha512(R, key, message)) % ORDER;
  const [X, Y, Z] = combined(number(signature.subarray(32)), BASE, h, negative(A));
  const byZ = inverse(Z);
  const right = encodedNumber(modulo(Y * byZ));
  right[31] |= Number(modulo(X * byZ) & 1n) << 7;
  return right.every((byte, place) => byte === R[place]);
}

/** Return the point that 32 bytes stand for; null if they stand for none, or are not the only bytes that do. */
function decoded(bytes) {
  const odd = BigInt(bytes[31] >> 7);
  const y = number(bytes) & (2n ** 255n - 1n);
  if (y >= P) return null;
  const u = modulo(y * y - 1n);
  const v = modulo(D * y * y + 1n);
  let x = modulo(u * v ** 3n * power(modulo(u * v ** 7n), (P - 5n) / 8n));
  if (modulo(v * x * x) === modulo(-u)) x = modulo(x * ROOT);
  if (modulo(v * x * x) !== u || (x === 0n && odd)) return null;
  if ((x & 1n) !== odd) x = P - x;
  return [x, y, 1n, modulo(x * y)];
}

/** Return whether eight times a point is zero. */
function isSmall(point) {
  const [X, Y, Z] = twice(twice(twice(point)));
  return X === 0n && Y === Z;
}

/** Return a P + b Q, bit by bit from the highest. */
function combined(a, point, b, other) {
  const both = sum(point, other);
  let result = ZERO;
  for (let bit = 255n; bit >= 0n; bit -= 1n) {
    result = twice(result);
    const one = (a >> bit) & 1n;
    const two = (b >> bit) & 1n;
    if (one || two) result = sum(result, one && two ? both : one ? point : other);
  }
  return result;
}

function sum([X1, Y1, Z1, T1], [X2, Y2, Z2, T2]) {
  const a = modulo((Y1 - X1) * (Y2 - X2));
  const b = modulo((Y1 + X1) * (Y2 + X2));
  const c = modulo(2n * D * T1 * T2);
  const d = modulo(2n * Z1 * Z2);
  return product(b - a, d - c, d + c, b + a);
}

function twice([X, Y, Z]) {
  const a = modulo(X * X);
  const b = modulo(Y * Y);
  const h = a + b;
  const e = h - modulo((X + Y) * (X + Y));
  const g = a - b;
  return product(e, modulo(2n * Z * Z) + g, g, h);
}

function product(e, f, g, h) {
  return [modulo(e * f), modulo(g * h), modulo(f * g), modulo(e * h)];
}

function negative([X, Y, Z, T]) {
  return [modulo(-X), Y, Z, modulo(-T)];
}

function modulo(value) {
  const rest = value % P;
  return rest < 0n ? rest + P : rest;
}

function power(base, exponent) {
  let result = 1n;
  for (let square = base; exponent; exponent >>= 1n, square = modulo(square * square)) {
    if (exponent & 1n) result = modulo(result * square);
  }
  return result;
}

function inverse(value) {
  return power(modulo(value), P - 2n);
}

/** Return the number that bytes stand for, lowest first. */
function number(bytes) {
  return bytes.reduceRight((value, byte) => (value << 8n) | BigInt(byte), 0n);
}

function encodedNumber(value) {
  return Uint8Array.from({ length: 32 }, (_, place) => Number((value >> BigInt(8 * place)) & 255n));
}
