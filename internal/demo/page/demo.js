// Draws two clients. The address may name another base path, service or query: ?base=/api&service=ls_books&query={...}

import { Client, capabilities } from './client.js'

const shownRows = 200
const told = { snapshot: '', live: ', as it happened', missed: ', missed while cut off' }
const since = { snapshot: 'snapshot', live: 'came live', missed: 'missed, recovered' }

const settings = new URLSearchParams(location.search)
const base = location.origin + (settings.get('base') ?? '')
const query = JSON.parse(settings.get('query') ?? '{}')

function view(title, name, service) {
  const section = document.getElementById('client').content.cloneNode(true).firstElementChild
  const find = selector => section.querySelector(selector)
  section.dataset.client = name
  find('h2').textContent = title
  document.getElementById('clients').append(section)

  let drawing = false
  const client = new Client({
    base, service, query,
    changed() {
      if (drawing) return
      drawing = true
      queueMicrotask(() => { drawing = false; draw() })
    }
  })
  const button = find('button')
  button.addEventListener('click', () => client.connected ? client.disconnect() : client.connect())

  function draw() {
    section.dataset.state = client.state
    button.setAttribute('aria-checked', String(client.connected))
    find('.label').textContent = client.connected ? 'Connected' : 'Disconnected'
    button.setAttribute('aria-label', `${title}: ${client.connected ? 'connected' : 'disconnected'}`)
    find('.state').textContent = sentence(client)
    find('.count').textContent = client.rows.size
    find('.through').textContent = client.through ?? '–'
    find('.high-water').textContent = client.highWater ?? '–'
    find('.recovered').textContent = client.recovered
    find('.changes').replaceChildren(...client.changes.map(change))
    // The newest first: rows stand in the order in which they entered.
    const rows = [...client.rows.values()].reverse()
    find('tbody').replaceChildren(...rows.slice(0, shownRows).map(row))
    find('.more').textContent = rows.length > shownRows ? `and ${rows.length - shownRows} more` : ''
  }
  draw()
  client.connect()
}

function sentence(client) {
  const state = client.state[0].toUpperCase() + client.state.slice(1)
  return client.note ? `${state}. ${client.note}` : `${state}.`
}

function element(tag, properties, ...children) {
  const e = Object.assign(document.createElement(tag), properties)
  e.append(...children)
  return e
}

// short is an outpoint for people.
function short(outpoint) {
  const [txid, index] = outpoint.split('.')
  return `${txid.slice(0, 12)}…:${index}`
}

function change({ sequence, how, lines }) {
  const item = element('li', {},
    element('strong', {}, `Change ${sequence}`),
    told[how],
    element('ul', {}, ...lines.map(line => {
      const li = element('li', { title: line.outpoint }, line.outpoint ? `${short(line.outpoint)} ${line.text}` : line.text)
      Object.assign(li.dataset, { kind: line.kind, outpoint: line.outpoint })
      return li
    })))
  Object.assign(item.dataset, { sequence, how })
  return item
}

function row({ outpoint, how, about, bytes }) {
  const tr = element('tr', {},
    element('td', { className: 'id', title: outpoint }, short(outpoint)),
    element('td', { className: 'about' }, about || '–'),
    element('td', { className: 'right' }, `${bytes.toLocaleString('en')} B`),
    element('td', { className: 'since' }, since[how]))
  Object.assign(tr.dataset, { outpoint, how })
  return tr
}

const line = document.getElementById('service')
try {
  const { body } = await capabilities(base)
  const open = body.services.filter(s => s.profiles.some(p => p.authentication === 'none')).map(s => s.name)
  const service = settings.get('service') ?? (open.includes('ls_catalogue') ? 'ls_catalogue' : open[0])
  if (!open.includes(service)) throw new Error('the provider offers no public service of that name')
  line.textContent = `Service ${service} of ${body.baseURL}, chain ${body.chain.network}.`
  view('First client', 'first', service)
  view('Second client', 'second', service)
} catch (error) {
  line.textContent = `This page cannot show anything: ${error.message}.`
}
