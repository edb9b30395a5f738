;;; qwen-companion-drafts.el --- Auto-save texts that no file holds  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Prompts, edited proposals and plans, and comments are in buffers that visit
;; no file.  They are auto-saved to a private directory; the file is deleted
;; with the buffer.  After Emacs was killed, `qwen-companion-recover-drafts'
;; restores the texts.
;;
;; The name of a file contains the process id of its Emacs, the kind of text,
;; and the file or directory that it is about.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-buffers)

(defvar qwen-companion-drafts-directory (locate-user-emacs-file "qwen-companion/drafts/")
  "The private directory of auto-saved texts.")

(defconst qwen-companion-drafts--name-limit 180
  "Limit of the path in a file's name, in bytes; most file systems allow 255.")

(defvar-local qwen-companion-drafts--about nil
  "The kind of text in the current buffer, and its file: (KIND . PATH).")

(defun qwen-companion-drafts-keep (kind path)
  "Auto-save the current buffer from its first change on.
KIND is `file' for a whole text of the file PATH, `lines' for a part of it,
and `prompt' for a prompt about the directory PATH."
  (setq qwen-companion-drafts--about (cons kind path))
  (add-hook 'first-change-hook #'qwen-companion-drafts--begin nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-drafts-forget nil t)
  (when (buffer-modified-p)
    (qwen-companion-drafts--begin)))

(defun qwen-companion-drafts--begin ()
  "Create the draft file of the current buffer, which is about to change."
  (unless buffer-auto-save-file-name
    (pcase-let* ((`(,kind . ,path) qwen-companion-drafts--about)
                 (name (string-replace "/" "%2F" (string-replace "%" "%25" path)))
                 ;; A name may look remote, or compressed.
                 (file-name-handler-alist nil))
      ;; A full disk must not keep the user from typing.
      (ignore-error file-error
        (make-directory qwen-companion-drafts-directory t)
        (set-file-modes qwen-companion-drafts-directory #o700)
        (setq buffer-auto-save-file-name
              (make-temp-file
               (expand-file-name
                (if (> (string-bytes name) qwen-companion-drafts--name-limit)
                    (format "%d-prompt-~-" (emacs-pid))
                  (format "%d-%s-%s-" (emacs-pid) kind name))
                qwen-companion-drafts-directory)))))))

(defun qwen-companion-drafts-forget ()
  "Delete the draft file of the current buffer: its text was sent or discarded."
  (when (and qwen-companion-drafts--about buffer-auto-save-file-name)
    (ignore-error file-error
      (delete-file buffer-auto-save-file-name))
    (setq buffer-auto-save-file-name nil)))

(defun qwen-companion-drafts-set (name text path)
  "Save TEXT, a prompt about the directory PATH, in the hidden buffer NAME.
With nil for TEXT, delete it."
  (if text
      (with-current-buffer (get-buffer-create name)
        (qwen-companion-drafts-keep 'prompt path)
        (unless (equal text (buffer-string))
          (erase-buffer)
          (insert text)))
    (when (get-buffer name)
      (kill-buffer name))))

;;; Drafts of killed Emacs processes

(defconst qwen-companion-drafts--name "/\\([0-9]+\\)-\\([a-z]+\\)-\\([^/]*\\)-[^-/]+\\'"
  "Regexp for a draft's file name; groups are process id, kind and path.")

(defun qwen-companion-drafts-orphaned ()
  "Return the drafts of killed Emacs processes, each (FILE KIND . PATH).
Delete empty files."
  (let ((file-name-handler-alist nil)
        drafts)
    (dolist (file (and (file-directory-p qwen-companion-drafts-directory)
                       (directory-files qwen-companion-drafts-directory t "\\`[0-9]")))
      (when (string-match qwen-companion-drafts--name file)
        (let ((pid (string-to-number (match-string 1 file)))
              (kind (intern (match-string 2 file)))
              (path (string-replace
                     "%25" "%" (string-replace "%2F" "/" (match-string 3 file)))))
          (cond
           ((qwen-companion-drafts--in-use-p file pid))
           ((zerop (file-attribute-size (file-attributes file)))
            (delete-file file))
           (t (push `(,file ,kind . ,path) drafts))))))
    drafts))

(defun qwen-companion-drafts--in-use-p (file pid)
  "Return non-nil when FILE is still in use by the Emacs process PID.
The id may belong to another program by now, or to this Emacs."
  (if (= pid (emacs-pid))
      (cl-find file (buffer-list) :test #'equal
               :key (lambda (buffer) (buffer-local-value 'buffer-auto-save-file-name buffer)))
    (let ((case-fold-search t))
      (string-match-p "emacs" (or (alist-get 'comm (process-attributes pid)) "")))))

(defun qwen-companion-drafts-text (file)
  "Return the text in FILE, without acting on any of its contents."
  (let ((coding-system-for-read 'utf-8-emacs-unix)
        (file-name-handler-alist nil)
        (format-alist nil)
        (after-insert-file-functions nil))
    (with-temp-buffer
      (insert-file-contents file)
      (buffer-string))))

(provide 'qwen-companion-drafts)
;;; qwen-companion-drafts.el ends here
