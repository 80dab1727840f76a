// Debian's Chromium, headless, with a folder of its own and nothing of its own to say to the network.

import { chromium } from 'playwright-core'

export async function launch(executablePath, userData) {
  return await chromium.launchPersistentContext(userData, {
    executablePath,
    headless: true,
    chromiumSandbox: false,
    viewport: { width: 1280, height: 900 },
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync'
    ]
  })
}
