;;; qwen-companion-drafts.el --- Texts of the user that survive a killed Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Prompts, edited proposals and plans, and comments are in buffers that visit
;; no file.  Emacs auto-saves these too, to a private directory, and the file
;; is deleted with the buffer.  What an Emacs has left that was killed is
;; brought back by `qwen-companion-recover-drafts'.
;;
;; The name of a file has what is to be known of it: the process of its Emacs,
;; the kind of text, and the file or directory that it is about.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-buffers)

(defvar qwen-companion-drafts-directory (locate-user-emacs-file "qwen-companion/drafts/")
  "The private directory of auto-saved texts.")

(defconst qwen-companion-drafts--name-limit 180
  "Bytes of the path in a file's name; most file systems take 255 in all.")

(defvar-local qwen-companion-drafts--about nil
  "The kind of text in the current buffer, and its file: (KIND . PATH).")

(defun qwen-companion-drafts-keep (kind path)
  "Have Emacs auto-save the current buffer from its first change on.
KIND is `file' for a text of the file PATH, `lines' for some of it, and
`prompt' for one to send about the directory PATH."
  (setq qwen-companion-drafts--about (cons kind path))
  (add-hook 'first-change-hook #'qwen-companion-drafts--begin nil t)
  (add-hook 'kill-buffer-hook #'qwen-companion-drafts-forget nil t)
  (when (buffer-modified-p)
    (qwen-companion-drafts--begin)))

(defun qwen-companion-drafts--begin ()
  "Make the file of the current buffer, which is about to be changed."
  (unless buffer-auto-save-file-name
    (pcase-let* ((`(,kind . ,path) qwen-companion-drafts--about)
                 (name (string-replace "/" "%2F" (string-replace "%" "%25" path)))
                 ;; A name in it may look like one of another host, or compressed.
                 (file-name-handler-alist nil))
      ;; Without room there is no file, and the text goes on.
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
  "Delete the file of the current buffer, whose text was sent or discarded."
  (when (and qwen-companion-drafts--about buffer-auto-save-file-name)
    (ignore-error file-error
      (delete-file buffer-auto-save-file-name))
    (setq buffer-auto-save-file-name nil)))

(defun qwen-companion-drafts-set (name text path)
  "Keep TEXT, to send about the directory PATH, in the hidden buffer NAME.
With nil for TEXT, forget it."
  (if text
      (with-current-buffer (get-buffer-create name)
        (qwen-companion-drafts-keep 'prompt path)
        (unless (equal text (buffer-string))
          (erase-buffer)
          (insert text)))
    (when (get-buffer name)
      (kill-buffer name))))

;;; What was left

(defconst qwen-companion-drafts--name "/\\([0-9]+\\)-\\([a-z]+\\)-\\([^/]*\\)-[^-/]+\\'"
  "Matches the name of a file: number of the process, kind and path.")

(defun qwen-companion-drafts-left ()
  "Return the texts of Emacsen that were killed, each (FILE KIND . PATH).
Delete the files that have none."
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
  "Return non-nil when the Emacs that had the number PID still has FILE.
The number may be another program's by now, or that of this Emacs."
  (if (= pid (emacs-pid))
      (cl-find file (buffer-list) :test #'equal
               :key (lambda (buffer) (buffer-local-value 'buffer-auto-save-file-name buffer)))
    (let ((case-fold-search t))
      (string-match-p "emacs" (or (alist-get 'comm (process-attributes pid)) "")))))

(defun qwen-companion-drafts-text (file)
  "Return the text in FILE; nothing in it is acted on."
  (let ((coding-system-for-read 'utf-8-emacs-unix)
        (file-name-handler-alist nil)
        (format-alist nil)
        (after-insert-file-functions nil))
    (with-temp-buffer
      (insert-file-contents file)
      (buffer-string))))

(provide 'qwen-companion-drafts)
;;; qwen-companion-drafts.el ends here
