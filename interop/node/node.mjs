// AuthFetch on Node.

import * as sdk from '@bsv/sdk'
import { Clients } from './client.mjs'
import { serve, version } from './lines.mjs'

const clients = new Clients(sdk)
await serve({ node: process.versions.node, sdk: await version('@bsv/sdk') }, command => clients.run(command))
process.exit(0)
