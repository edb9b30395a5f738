;;; qwen-companion-chat-changes.el --- What a tool of a chat would do  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software; you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.

;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.

;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; How a tool would change files, or has: short changes as lines for the
;; conversation, any in buffers of our own.  The texts are a model's: no mode hook, no local
;; variable and no handler of file names gets at them.

;;; Code:

(require 'cl-lib)
(require 'diff-mode)
(require 'subr-x)
(require 'qwen-companion-chat-tools)
(require 'qwen-companion-diff)
(require 'qwen-companion-difference)
(require 'qwen-companion-untrusted)

(declare-function ediff-buffers "ediff" (buffer-a buffer-b &optional startup-hooks job-name))
(defvar ediff-after-quit-hook-internal)

(defconst qwen-companion-chat-changes--limit 20000
  "Characters of both sides above which a change is no text for a conversation.")

(defun qwen-companion-chat-changes--sides (tool diff callback)
  "Get both texts of DIFF, a change by TOOL, both plists.
CALLBACK is called with OLD and NEW in the current buffer, or with nil
twice where they could not be had."
  (let ((id (plist-get tool :id))
        (index (plist-get diff :index)))
    (qwen-companion-chat-tools-fetch
     id 'new index
     (lambda (new)
       (cond ((not new) (funcall callback nil nil))
             ;; A new file.
             ((not (plist-get diff :old-size)) (funcall callback "" new))
             (t (qwen-companion-chat-tools-fetch
                 id 'old index
                 (lambda (old) (funcall callback old (and old new))))))))))

;;; As text

(defun qwen-companion-chat-changes-visible (text)
  "Return TEXT, of one line or more, with all that is in it visible."
  (qwen-companion-untrusted-text text t))

(defconst qwen-companion-chat-changes--script
  "LC_ALL=C diff -a -u -- \"$1\" \"$2\" | tail -n +3"
  "What compares both sides of a change; the names of the files are ours.")

(defun qwen-companion-chat-changes--compare (old new callback)
  "Compare the texts OLD and NEW.
CALLBACK is called with what diff prints, in the current buffer if that
is alive then.  It gets nil when there is no room for them on the disk."
  (let ((buffer (current-buffer)))
    (condition-case nil
        (qwen-companion-difference-run
         old new qwen-companion-chat-changes--script
         (lambda (output)
           (when (buffer-live-p buffer)
             (with-current-buffer buffer
               (funcall callback output)))))
      (file-error (funcall callback nil)))))

(defun qwen-companion-chat-changes-lines (tool diff callback)
  "Get DIFF, a change by TOOL, as lines for a conversation.
CALLBACK is called in the current buffer with the lines, with `large'
where that would be too many, or with `failed'."
  (if (> (+ (or (plist-get diff :old-size) 0) (plist-get diff :new-size))
         qwen-companion-chat-changes--limit)
      (funcall callback 'large)
    (qwen-companion-chat-changes--sides
     tool diff
     (lambda (old new)
       (if (not new)
           (funcall callback 'failed)
         (qwen-companion-chat-changes--compare
          old new
          (lambda (output)
            (funcall callback
                     (cond ((null output) 'failed)
                           ((string-empty-p output) "")
                           (t (qwen-companion-chat-changes--coloured output)))))))))))

(defun qwen-companion-chat-changes--coloured (output)
  "Return OUTPUT of diff as it is shown: visible, and with faces."
  (mapconcat
   (lambda (line)
     (let ((line (qwen-companion-chat-changes-visible line)))
       (propertize (concat line "\n")
                   'face (pcase (and (not (string-empty-p line)) (aref line 0))
                           (?+ 'diff-added)
                           (?- 'diff-removed)
                           (?@ 'diff-hunk-header)
                           (_ 'diff-context)))))
   (split-string (string-remove-suffix "\n" output) "\n")
   ""))

;;; All of it, in buffers

(defun qwen-companion-chat-changes-show (tool diffs &optional callback)
  "Show in buffers what DIFFS say TOOL does to files; all are plists.
That is in the front end that `qwen-companion-diff-style' names.
CALLBACK is called in the current buffer with t when all are shown, and
with nil when one is not to be had."
  (let ((callback (or callback #'ignore)))
    (if (and (eq qwen-companion-diff-style 'ediff)
             ;; Ediff arranges the windows, which can be done for one.
             (not (cdr diffs)))
        (qwen-companion-chat-changes--sides
         tool (car diffs)
         (lambda (old new)
           (cond
            ((not new) (funcall callback nil))
            ((save-current-buffer
               (qwen-companion-chat-changes--ediff
                (plist-get (car diffs) :path) old new))
             (funcall callback t))
            (t (qwen-companion-chat-changes--show-each tool diffs callback)))))
      (qwen-companion-chat-changes--show-each tool diffs callback))))

(defun qwen-companion-chat-changes--show-each (tool diffs callback)
  "Show each of DIFFS, by TOOL, after the one before as a unified diff.
CALLBACK is as for `qwen-companion-chat-changes-show'."
  (if (not diffs)
      (funcall callback t)
    (qwen-companion-chat-changes--sides
     tool (car diffs)
     (lambda (old new)
       (if (not new)
           (funcall callback nil)
         (qwen-companion-chat-changes--compare
          old new
          (lambda (output)
            (if (not output)
                (funcall callback nil)
              (display-buffer
               (let ((file-name-handler-alist nil))
                 (qwen-companion-difference-buffer (plist-get (car diffs) :path) output)))
              (qwen-companion-chat-changes--show-each tool (cdr diffs) callback)))))))))

(defun qwen-companion-chat-changes--side (path kind text)
  "Return a new buffer with TEXT, the side KIND of a change of PATH."
  (with-current-buffer (generate-new-buffer
                        (format "*qwen-companion %s: %s*" kind
                                (qwen-companion-untrusted-text
                                 (file-name-nondirectory path))))
    (insert text)
    (goto-char (point-min))
    (let ((file-name-handler-alist nil))
      (qwen-companion-untrusted-set-major-mode path))
    (set-buffer-modified-p nil)
    (setq buffer-read-only t)
    (current-buffer)))

(defun qwen-companion-chat-changes--ediff (path old new)
  "Compare OLD and NEW, texts of the file PATH, in Ediff.
Its buffers go and the windows return when it is quit.  Return nil if
Ediff cannot compare them, and say why."
  (require 'ediff)
  (let* ((before (current-window-configuration))
         (sides (list (qwen-companion-chat-changes--side path "before" old)
                      (qwen-companion-chat-changes--side path "after" new)))
         (clean (lambda ()
                  (mapc (lambda (buffer)
                          (when (buffer-live-p buffer)
                            (kill-buffer buffer)))
                        sides)
                  (set-window-configuration before))))
    (condition-case err
        (progn
          (qwen-companion-difference-with-ediff
           sides
           (lambda ()
             (ediff-buffers
              (car sides) (cadr sides)
              (list (lambda ()
                      (add-hook 'ediff-after-quit-hook-internal clean nil t))))))
          t)
      (error
       (funcall clean)
       (message "qwen-companion: Ediff cannot show %s (%s); here it is as a difference"
                (qwen-companion-untrusted-path path) (error-message-string err))
       nil))))

(provide 'qwen-companion-chat-changes)
;;; qwen-companion-chat-changes.el ends here
