// Makes a component of a JavaScript module: node build.mjs <source> <wit> <world> <component>
import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [sourcePath, witPath, worldName, out] = process.argv.slice(2);
// The host grants no network.
const { component } = await componentize({ sourcePath, witPath, worldName, disableFeatures: ['http', 'fetch-event'] });
await writeFile(out, component);
