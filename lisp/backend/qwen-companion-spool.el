;;; qwen-companion-spool.el --- Hand over long texts as private files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Texts in messages between Emacs and the Python process.  A short text is in
;; the message itself.  A long one is in a file of a private directory; its
;; reader deletes it.  If no file can be written, as on a full disk, Emacs
;; sends a long text in parts before the message.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-spool--inline-limit 8192
  "Longest text in bytes that is sent in a message; longer ones are sent by file.
The process has the same limit, in `wire/plists.py'.")

(defconst qwen-companion-spool--part-length 16384
  "Characters in a part of a text that cannot be sent by file.")

(defvar qwen-companion-spool--last-id 0
  "Number of the last text that was sent in parts.")

;;; Sending

(defun qwen-companion-spool-pack (text &optional line-end)
  "Return TEXT as part of a payload.
This is (:text TEXT), or (:text-file FILE) for a long one.  If no file can
be written, send TEXT in parts and return (:text-parts ID); the payload
must be sent next.  If LINE-END is \"\\r\\n\", add :crlf t: the Python
process converts each LF to that."
  (append
   (if (<= (string-bytes text) qwen-companion-spool--inline-limit)
       (list :text (substring-no-properties text))
     (condition-case err
         (list :text-file (qwen-companion-spool-write
                           text
                           ;; ASCII needs no encoding, which takes ten times as
                           ;; long.
                           (if (= (length text) (string-bytes text))
                               'no-conversion
                             'utf-8-unix)))
       (file-error
        (qwen-companion-backend-notice-once
         (format "cannot write to %s (%s): long texts are sent over the connection, which is slower"
                 (abbreviate-file-name (or (qwen-companion-backend-spool)
                                           temporary-file-directory))
                 (qwen-companion-backend-file-error-reason err)))
        (qwen-companion-spool--send-parts text))))
   (and (equal line-end "\r\n") '(:crlf t))))

(defun qwen-companion-spool--send-parts (text)
  "Send TEXT in parts, one after the other; return (:text-parts ID)."
  (let ((id (cl-incf qwen-companion-spool--last-id)))
    (cl-loop for start from 0 below (length text) by qwen-companion-spool--part-length
             for end = (min (length text) (+ start qwen-companion-spool--part-length))
             do (qwen-companion-backend-call
                 'text-part
                 (list :id id :text (substring-no-properties text start end))))
    (list :text-parts id)))

(defun qwen-companion-spool-pack-buffer ()
  "Return the text of the current buffer, widened, as part of a payload.
All of its characters must be Unicode."
  (if (<= (position-bytes (point-max)) qwen-companion-spool--inline-limit)
      (list :text (buffer-substring-no-properties (point-min) (point-max)))
    ;; Emacs stores such text as UTF-8: writing it unchanged takes a twentieth
    ;; of the time of encoding it.
    (list :text-file (qwen-companion-spool-write nil 'no-conversion))))

(defun qwen-companion-spool-write (text coding &optional prefix suffix)
  "Write TEXT to a new private file, encoded as CODING, and return its name.
If TEXT is nil, write the whole text of the current buffer.  Without a
Python process, use Emacs's directory of temporary files.  The name begins
with PREFIX, \"text-\" by default, and ends with SUFFIX.  Signal a
`file-error' if it cannot be written."
  (let ((file (make-temp-file
               (expand-file-name (or prefix "text-") (or (qwen-companion-backend-spool)
                                                         temporary-file-directory))
               nil suffix))
        (coding-system-for-write coding)
        (write-region-annotate-functions nil)
        (write-region-post-annotation-function nil)
        (write-region-inhibit-fsync t)
        (file-name-handler-alist nil))
    (condition-case err
        (write-region text nil file nil 'silent)
      (file-error
       ;; The incomplete file would take up the last space.
       (delete-file file)
       (signal (car err) (cdr err))))
    file))

;;; Images

(defun qwen-companion-spool-clipboard-image ()
  "Save the image of the clipboard in a new private file; return its name.
Signal a `user-error' if there is none, or no Python process."
  (let ((image (or (ignore-errors (gui-get-selection 'CLIPBOARD 'image/png))
                   (user-error "No image in the clipboard"))))
    (unless (qwen-companion-backend-spool)
      (user-error "The companion is not running; M-x qwen-companion-mode starts it"))
    (qwen-companion-spool-write image 'no-conversion "image-" ".png")))

;;; Receiving

(defsubst qwen-companion-spool--file (payload)
  "Return the name of the file with the text of PAYLOAD, nil if it has none."
  (plist-get payload :text-file))

(defsubst qwen-companion-spool--inline (payload)
  "Return the text in PAYLOAD itself, nil if it is in a file."
  (plist-get payload :text))

;; For 20 MB, the first takes 35 ms for ASCII, and 190 to 340 for other texts;
;; the second takes 75 for ASCII, and 105 to 180 for others.  Converting line
;; ends meanwhile costs 30 ms more, and 0.5 s afterwards.

(defun qwen-companion-spool--insert-file (file coding)
  "Insert the contents of FILE at point, decoded as CODING."
  (let ((coding-system-for-read coding)
        (inhibit-eol-conversion nil)
        ;; The settings for saving the current buffer do not apply to FILE.
        (buffer-file-coding-system buffer-file-coding-system)
        (buffer-file-coding-system-explicit buffer-file-coding-system-explicit)
        ;; The text is untrusted: no format conversion may run on it.
        (format-alist nil)
        (after-insert-file-functions nil))
    (insert-file-contents file)))

(defun qwen-companion-spool--insert-bytes (file coding)
  "Insert the UTF-8 text in FILE at point without decoding its characters.
Emacs keeps them as their bytes in UTF-8.  CODING is `no-conversion', or
`raw-text-dos' to convert line ends."
  (let ((target (current-buffer)))
    (with-temp-buffer
      (set-buffer-multibyte nil)
      (qwen-companion-spool--insert-file file coding)
      (set-buffer-multibyte t)
      (let ((text (current-buffer)))
        (with-current-buffer target
          (save-excursion
            (insert-buffer-substring text)))))))

(defun qwen-companion-spool-insert (payload &optional convert)
  "Insert the text of PAYLOAD at point, unchanged.
If CONVERT is non-nil, convert a long text in which all lines end in CR LF
to LF, and return non-nil."
  (if-let* ((file (qwen-companion-spool--file payload)))
      (let* ((file-name-handler-alist nil)
             (name (file-name-nondirectory file))
             (dos (and convert
                       (string-match-p "\\`\\(?:ascii\\|utf-8\\)-crlf-" name))))
        (unless (qwen-companion-untrusted-in-directory-p file (qwen-companion-backend-spool))
          (error "The text is outside the private directory"))
        (if (string-prefix-p "ascii-" name)
            (qwen-companion-spool--insert-file file (if dos 'utf-8-dos 'utf-8-unix))
          (qwen-companion-spool--insert-bytes file (if dos 'raw-text-dos 'no-conversion)))
        (delete-file file)
        (and dos t))
    (insert (qwen-companion-spool--inline payload))
    nil))

(defun qwen-companion-spool-text (payload)
  "Return the text of PAYLOAD, unchanged."
  (or (qwen-companion-spool--inline payload)
      (with-temp-buffer
        (qwen-companion-spool-insert payload)
        (buffer-string))))

(defun qwen-companion-spool-numbers (payload)
  "Return the vector of integers in PAYLOAD."
  (with-temp-buffer
    (insert "[")
    (qwen-companion-spool-insert payload)
    (goto-char (point-max))
    (insert "]")
    (goto-char (point-min))
    (read (current-buffer))))

(defun qwen-companion-spool-size (payload)
  "Return the length in bytes of the text of PAYLOAD."
  (if-let* ((file (qwen-companion-spool--file payload)))
      (or (file-attribute-size (file-attributes file)) 0)
    (string-bytes (qwen-companion-spool--inline payload))))

(defun qwen-companion-spool-drop (payload)
  "Remove the file of the text in PAYLOAD, if it has one."
  (when-let* ((file (qwen-companion-spool--file payload))
              (spool (qwen-companion-backend-spool)))
    (when (qwen-companion-untrusted-in-directory-p file spool)
      (delete-file file))))

(provide 'qwen-companion-spool)
;;; qwen-companion-spool.el ends here
