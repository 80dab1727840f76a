// Judges testvectors/reconcile by the official TypeScript SDK: headers, txids, evidence with its Merkle paths, and every
// script whose output is in the case. The selection is not its business. Prints one line of JSON; exit code 1 on a fault.
//
//   node interop/node/vectors.mjs [folder]

import { readdirSync, readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'
import { resolve } from 'node:path'
import { Beef, Hash, Spend, Transaction, Utils } from '@bsv/sdk'

const folder = pathToFileURL(resolve(process.argv[2] ?? new URL('../../testvectors/reconcile', import.meta.url).pathname) + '/')
const counts = { cases: 0, headers: 0, transactions: 0, inputs: 0, invalid: 0, bundles: 0, paths: 0 }
const faults = []

// headersOf reads the headers of a case and returns their roots by height and hash.
function headersOf(c, say) {
  const heights = new Map()
  const roots = new Set()
  for (const hex of c.headers) {
    const raw = Utils.toArray(hex, 'hex')
    const hash = Utils.toHex(Hash.hash256(raw).reverse())
    const prev = Utils.toHex(raw.slice(4, 36).reverse())
    const height = /^0+$/.test(prev) ? 0 : heights.get(prev) + 1
    if (raw.length !== 80 || Number.isNaN(height)) say(`header ${hash} follows none of the case`)
    if (hash > '7fffff' + '0'.repeat(58)) say(`header ${hash} is above its target`)
    heights.set(hash, height)
    roots.add(`${height}:${Utils.toHex(raw.slice(36, 68).reverse())}`)
    counts.headers++
  }
  for (const [name, tip] of Object.entries(c.views)) if (!heights.has(tip)) say(`view ${name} has no header`)
  return roots
}

// verdict is what the SDK says of a transaction whose parents are all in the case.
function verdict(tx, parents) {
  const seen = new Set()
  let value = 0
  for (const [index, input] of tx.inputs.entries()) {
    const spent = parents[index].outputs[input.sourceOutputIndex]
    if (spent === undefined) return 'inputs'
    const outpoint = `${input.sourceTXID}.${input.sourceOutputIndex}`
    if (seen.has(outpoint)) return 'inputs'
    seen.add(outpoint)
    value += spent.satoshis
  }
  if (tx.outputs.reduce((sum, o) => sum + o.satoshis, 0) > value) return 'values'
  for (const [index, input] of tx.inputs.entries()) {
    counts.inputs++
    const spent = parents[index].outputs[input.sourceOutputIndex]
    const spend = new Spend({
      sourceTXID: input.sourceTXID,
      sourceOutputIndex: input.sourceOutputIndex,
      sourceSatoshis: spent.satoshis,
      lockingScript: spent.lockingScript,
      transactionVersion: tx.version,
      otherInputs: tx.inputs.filter((_, i) => i !== index),
      outputs: tx.outputs,
      inputIndex: index,
      unlockingScript: input.unlockingScript,
      inputSequence: input.sequence,
      lockTime: tx.lockTime
    })
    try {
      if (!spend.validate()) return 'script'
    } catch {
      return 'script'
    }
  }
  return ''
}

function transactionsOf(c, say) {
  const byID = new Map()
  for (const [name, t] of Object.entries(c.transactions)) {
    const tx = Transaction.fromHex(t.raw)
    if (tx.id('hex') !== t.txid) say(`${name}: txid ${tx.id('hex')}`)
    if (tx.toHex() !== t.raw) say(`${name}: written again it is another`)
    byID.set(t.txid, { name, tx, root: c.roots.includes(name) })
    counts.transactions++
  }
  for (const { name, tx, root } of byID.values()) {
    if (root || tx.inputs.every(i => /^0+$/.test(i.sourceTXID))) continue // trusted, or a coinbase
    const parents = tx.inputs.map(i => byID.get(i.sourceTXID)?.tx)
    if (parents.includes(undefined)) {
      say(`${name} spends what is not in the case`)
      continue
    }
    const fault = verdict(tx, parents)
    const want = c.transactions[name]
    if (fault !== (want.fault ?? '') || want.valid !== (fault === '')) say(`${name}: fault "${fault}"`)
    if (fault !== '') counts.invalid++
  }
  return byID
}

function evidenceOf(c, byID, roots, say) {
  const named = id => byID.get(id)?.name ?? id
  for (const [name, e] of Object.entries(c.evidence)) {
    if (!e.wellFormed) continue
    const beef = Beef.fromBinary(Utils.toArray(e.bytes, 'base64'))
    counts.bundles++
    const holds = beef.txs.filter(t => !t.isTxidOnly).map(t => named(t.txid))
    const only = beef.txs.filter(t => t.isTxidOnly).map(t => named(t.txid))
    if (holds.join() !== (e.holds ?? []).join()) say(`${name} holds ${holds}`)
    if (only.join() !== (e.txidOnly ?? []).join()) say(`${name} only names ${only}`)
    if ((beef.atomicTxid === undefined ? '' : named(beef.atomicTxid)) !== (e.subject ?? '')) say(`${name} is about ${beef.atomicTxid}`)
    const paths = beef.txs.filter(t => t.bumpIndex !== undefined)
    if (paths.length !== (e.proofs ?? []).length) say(`${name} has ${paths.length} paths`)
    for (const p of e.proofs ?? []) {
      counts.paths++
      const id = c.transactions[p.transaction].txid
      const path = beef.bumps[paths.find(t => t.txid === id)?.bumpIndex]
      if (path === undefined || path.blockHeight !== p.height || path.computeRoot(id) !== p.root) {
        say(`${name}: the path of ${p.transaction} leads to ${path?.computeRoot(id)} at ${path?.blockHeight}`)
      }
      // Only a forgery leads to no header of the case.
      const known = roots.has(`${p.height}:${p.root}`)
      if (known === (c.name === 'forged-path')) say(`${name}: a header has the root of ${p.transaction}: ${known}`)
    }
  }
}

for (const file of readdirSync(folder).filter(f => f.endsWith('.json')).sort()) {
  const c = JSON.parse(readFileSync(new URL(file, folder), 'utf8'))
  const say = text => faults.push(`${file}: ${text}`)
  counts.cases++
  try {
    const roots = headersOf(c, say)
    const byID = transactionsOf(c, say)
    evidenceOf(c, byID, roots, say)
  } catch (error) {
    say(String(error?.message ?? error))
  }
}
console.log(JSON.stringify({ counts, faults }))
process.exitCode = faults.length === 0 ? 0 : 1
