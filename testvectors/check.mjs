// Recomputes the digest vectors with nothing but Node: see README.md.
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync, writeFileSync } from 'node:fs'

const folder = new URL('./digests/', import.meta.url)
const write = process.argv.includes('--write')

function canonical (value) {
  if (Array.isArray(value)) return '[' + value.map(canonical).join(',') + ']'
  if (value !== null && typeof value === 'object') {
    // Array.prototype.sort compares UTF-16 code units, as RFC 8785 asks.
    const names = Object.keys(value).sort()
    return '{' + names.map(n => JSON.stringify(n) + ':' + canonical(value[n])).join(',') + '}'
  }
  return JSON.stringify(value)
}

let failures = 0
let count = 0
for (const file of readdirSync(folder).filter(f => f.endsWith('.json')).sort()) {
  const path = new URL(file, folder)
  const document = JSON.parse(readFileSync(path, 'utf8'))
  for (const vector of document.vectors) {
    const form = canonical(JSON.parse(vector.text))
    const sha256 = createHash('sha256')
      .update('BRC-OUTPUT/1/' + vector.domain, 'utf8')
      .update(Buffer.from([0]))
      .update(form, 'utf8')
      .digest('hex')
    count++
    if (write) {
      vector.canonical = form
      vector.sha256 = sha256
    } else if (vector.canonical !== form || vector.sha256 !== sha256) {
      failures++
      console.error(`${file}: ${vector.name}: differs`)
    }
  }
  if (write) writeFileSync(path, JSON.stringify(document, null, 2) + '\n')
}
console.log(`${count} vectors, ${failures} differences`)
process.exitCode = failures === 0 ? 0 : 1
