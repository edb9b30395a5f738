;;; qwen-companion-terminal-files.el --- Files and images for CLIs in terminals  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A file that is dropped on a terminal, and an image in the clipboard, are
;; mentioned in the prompt of the CLI, as if their names had been typed.

;;; Code:

(require 'qwen-companion-quote)
(require 'qwen-companion-spool)
(require 'qwen-companion-terminal)

(defun qwen-companion-terminal-files--mention (file)
  "Paste FILE as a mention into the terminal of the current buffer."
  (qwen-companion-terminal-paste-text
   (current-buffer)
   (format "@%s " (qwen-companion-quote-escape
                   (qwen-companion-quote-relative-name
                    file qwen-companion-terminal-directory)))))

(declare-function dnd-get-local-file-name "dnd" (uri &optional must-exist))

(defun qwen-companion-terminal-files-drop (uri _action)
  "Paste the file URI, which was dropped on a terminal, as a mention."
  (when-let* ((file (dnd-get-local-file-name uri t)))
    (qwen-companion-terminal-files--mention file)
    'private))

;;;###autoload
(defun qwen-companion-paste-image ()
  "Put the image of the clipboard into a file and mention that in the CLI's prompt.
The CLI is that of this terminal, or else of the project."
  (interactive)
  (let* ((buffer (if qwen-companion-terminal-directory
                     (current-buffer)
                   (or (car (qwen-companion-terminal-recent
                             (qwen-companion-terminal-here)))
                       (user-error "No CLI that was started by M-x qwen-companion-run is here"))))
         (file (qwen-companion-spool-clipboard-image)))
    (with-current-buffer buffer
      (qwen-companion-terminal-files--mention file))))

(provide 'qwen-companion-terminal-files)
;;; qwen-companion-terminal-files.el ends here
