// A small client of the lookup-live profile in anonymous mode: it opens a session, pages the snapshot, follows by long poll,
// and after any interruption goes on from its cursor. What it knows lives in memory and ends with the page.

const profile = 'https://bsv.brc.dev/overlays/0193#lookup-live-v1'
const pageLimits = { maxBytes: 4 << 20, maxObservations: 256, waitMs: 0 }
const liveLimits = { ...pageLimits, waitMs: 25000 }
const pause = 1000 // milliseconds before trying again, unless the provider says otherwise
const keptChanges = 50

// canonical is JSON in the one form that digests are made of: members sorted, no white space (RFC 8785).
export function canonical(value) {
  if (Array.isArray(value)) return '[' + value.map(canonical).join(',') + ']'
  if (value === null || typeof value !== 'object') return JSON.stringify(value)
  return '{' + Object.keys(value).sort().map(name => JSON.stringify(name) + ':' + canonical(value[name])).join(',') + '}'
}

// capabilities asks a provider what it offers, and names the answer by its digest.
export async function capabilities(base) {
  const response = await fetch(base + '/overlay/v1/capabilities', { cache: 'no-store' }).catch(error => {
    throw new Unreachable(`the provider cannot be reached (${error.message})`)
  })
  if (!response.ok) throw new Refused(response.status)
  const { body } = await response.json()
  const preimage = new TextEncoder().encode('BRC-OUTPUT/1/capabilities\0' + canonical(body))
  const sum = new Uint8Array(await crypto.subtle.digest('SHA-256', preimage))
  return { body, digest: hex(sum) }
}

function hex(bytes) {
  return Array.from(bytes, b => b.toString(16).padStart(2, '0')).join('')
}

// Refused is an error that the provider told.
class Refused extends Error {
  constructor(status, told) {
    super(told?.message ?? `the provider answered ${status}`)
    this.code = told?.code ?? 'unavailable'
    this.retryAfterMs = told?.retryAfterMs
  }

  // ended: there is no going on in this session.
  get ended() { return ['expired', 'reset-required', 'context-changed', 'unauthorized'].includes(this.code) }
  // passing: the same, or an open with a fresh manifest, may do later.
  get passing() { return ['unavailable', 'expired', 'context-changed'].includes(this.code) }
}

// Unreachable says that no answer came.
class Unreachable extends Error {}

export class Client {
  state = 'offline' // offline, opening, catching up, live, waiting to try again, failed
  note = ''
  rows = new Map() // by outpoint: what is listed
  changes = [] // the newest first; each {sequence, how, lines}
  recovered = 0 // changes that came after a time without connection
  through = null // sequence that everything up to was seen, a decimal string
  highWater = null

  #base
  #service
  #query
  #changed
  #asked = null // {digest, requestId} of an open without an answer: asking again with the same gives the same session
  #position = null // {digest, session, cursor, complete}
  #staged = null // rows of a snapshot that is not complete
  #opened = false // whether a snapshot was complete before
  #running = null // AbortController while connected

  // changed is called whenever something of the above has changed.
  constructor({ base, service, query = {}, changed }) {
    this.#base = base
    this.#service = service
    this.#query = query
    this.#changed = changed
  }

  get connected() { return this.#running !== null }

  connect() {
    if (this.#running) return
    const running = this.#running = new AbortController()
    this.#run(running.signal).catch(error => {
      if (running.signal.aborted) return
      this.#running = null
      this.#become('failed', error.message)
    })
  }

  disconnect() {
    this.#running?.abort()
    this.#running = null
    this.#become('offline', this.#position ? 'Cut off. The session and the position are kept.' : '')
  }

  #become(state, note = '') {
    this.state = state
    this.note = note
    this.#changed()
  }

  // #run follows until signal aborts.
  async #run(signal) {
    let missed = this.#position?.complete === true // until it has caught up, what comes is what it missed
    for (;;) {
      try {
        if (!this.#position) {
          this.#become('opening', 'Taking a snapshot.')
          await this.#open(signal)
        }
        while (!this.#position.complete) await this.#read(signal, pageLimits, 'snapshot')
        if (missed) {
          this.#become('catching up', 'Catching up from where it stood.')
          while (!(await this.#read(signal, pageLimits, 'missed'))) { /* until it stands where the provider does */ }
          missed = false
        }
        this.#become('live', 'Waiting for the next change.')
        await this.#read(signal, liveLimits, 'live')
      } catch (error) {
        if (signal.aborted) return
        if (error instanceof Refused && error.ended && this.#position) {
          this.#position = null
          missed = false
          this.#become('opening', 'The session is over: ' + error.message)
        } else if (error instanceof Unreachable || (error instanceof Refused && error.passing)) {
          missed = this.#position?.complete === true
          this.#become('waiting to try again', 'The provider cannot be reached just now. Trying again.')
          await delay(error.retryAfterMs ?? pause, signal)
        } else {
          throw error
        }
      }
      if (signal.aborted) return
    }
  }

  async #open(signal) {
    if (!this.#asked) {
      const { body, digest } = await capabilities(this.#base)
      if (!body.services.some(s => s.name === this.#service)) throw new Error(`The provider offers no service ${this.#service}.`)
      this.#asked = { digest, requestId: hex(crypto.getRandomValues(new Uint8Array(24))) }
    }
    const { digest, requestId } = this.#asked
    const batch = await this.#post(signal, digest, 'open', {
      version: 1, requestId, service: this.#service, query: this.#query, limits: pageLimits
    }).catch(error => {
      if (error instanceof Refused && error.code !== 'unavailable') this.#asked = null
      throw error
    })
    this.#asked = null
    this.#staged = new Map()
    this.#position = { digest, session: batch.session, cursor: null, complete: false }
    this.#take(batch, 'snapshot')
  }

  // #read takes the next batch and reports whether it reaches to where the provider was.
  async #read(signal, limits, how) {
    const { digest, session, cursor } = this.#position
    const batch = await this.#post(signal, digest, 'read', { version: 1, session, cursor, limits })
    this.#take(batch, how)
    return BigInt(batch.through) >= BigInt(batch.highWater)
  }

  async #post(signal, digest, endpoint, body) {
    let response, text
    try {
      response = await fetch(`${this.#base}/overlay/v1/lookup/${endpoint}`, {
        method: 'POST',
        cache: 'no-store',
        signal,
        headers: {
          'Content-Type': 'application/json',
          'Cache-Control': 'no-store',
          'x-bsv-overlay-capability': digest,
          'x-bsv-overlay-profile': profile
        },
        body: JSON.stringify(body)
      })
      text = await response.text()
    } catch (error) {
      throw new Unreachable(error.message)
    }
    signal.throwIfAborted() // what was cut off is not taken, so it will come again
    let told
    try { told = JSON.parse(text) } catch { throw new Refused(response.status) }
    if (!response.ok) throw new Refused(response.status, told.error)
    return told
  }

  // #take checks a whole batch, then moves table and cursor together.
  #take(batch, how) {
    const through = BigInt(batch.through)
    let last = this.through === null || how === 'snapshot' ? -1n : BigInt(this.through)
    if (through > BigInt(batch.highWater) || through < last) throw new Error('The provider went backwards.')
    for (const group of batch.groups) {
      const sequence = BigInt(group.sequence)
      if (sequence > through || (batch.phase === 'live' && sequence <= last)) throw new Error('A change is out of order.')
      if (batch.phase === 'live') last = sequence
    }
    const rows = batch.phase === 'snapshot' ? this.#staged : this.rows
    for (const group of batch.groups) {
      const lines = group.observations.map(o => apply(rows, o, how))
      if (batch.phase === 'live') {
        this.changes.unshift({ sequence: group.sequence, how, lines })
        if (how === 'missed') this.recovered++
      }
    }
    if (batch.phase === 'snapshot' && batch.snapshotComplete) {
      if (this.#opened) {
        const text = `A new snapshot took the place of what was known: ${this.#staged.size} outputs.`
        this.changes.unshift({ sequence: batch.through, how: 'snapshot', lines: [{ kind: 'snapshot', outpoint: '', text }] })
      }
      this.#opened = true
      this.rows = this.#staged
      this.#staged = null
    }
    this.changes.length = Math.min(this.changes.length, keptChanges)
    this.#position.cursor = batch.cursor
    this.#position.complete = batch.snapshotComplete
    this.through = batch.through
    this.highWater = batch.highWater
    this.#changed()
  }
}

// apply makes one observation true of rows and tells it in words.
function apply(rows, { kind, payload }, how) {
  switch (kind) {
    case 'output': {
      const { txid, outputIndex, beef } = payload.evidence
      const outpoint = `${txid}.${outputIndex}`
      const known = rows.has(outpoint)
      rows.set(outpoint, { outpoint, how, about: about(payload.context), bytes: size(beef) })
      return { kind, outpoint, text: known ? 'changed' : 'entered the catalogue' }
    }
    case 'spend': {
      const { txid, outputIndex } = payload.previous
      return { kind, outpoint: `${txid}.${outputIndex}`, text: `was spent by ${payload.spendingTxid.slice(0, 12)}…` }
    }
    case 'withdraw': {
      const { txid, outputIndex } = payload.outpoint
      const outpoint = `${txid}.${outputIndex}`
      rows.delete(outpoint)
      return { kind, outpoint, text: `left the catalogue (${payload.reason})` }
    }
    default:
      return { kind, outpoint: '', text: `What was found in context ${payload.contextId} holds no more (${payload.reason}).` }
  }
}

// about is a context in words: the members of a JSON object, or its size.
function about(context) {
  if (!context) return ''
  try {
    const bytes = Uint8Array.from(atob(context.bytes), c => c.charCodeAt(0))
    const value = JSON.parse(new TextDecoder().decode(bytes))
    return Object.entries(value).map(([name, v]) => `${name} ${typeof v === 'object' ? JSON.stringify(v) : v}`).join(', ')
  } catch {
    return `${size(context.bytes)} bytes of ${context.schema}`
  }
}

// size is how many bytes a base64 text stands for.
function size(base64) {
  return base64.length / 4 * 3 - (base64.endsWith('==') ? 2 : base64.endsWith('=') ? 1 : 0)
}

function delay(ms, signal) {
  return new Promise(resolve => {
    const timer = setTimeout(resolve, ms)
    signal.addEventListener('abort', () => { clearTimeout(timer); resolve() }, { once: true })
  })
}
