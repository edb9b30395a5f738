;;; qwen-companion-spool.el --- Hand over long texts as private files  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A text is a part of a message between Emacs and the Python process.  A
;; short one is in the message itself; a long one is in a file of a private
;; directory; its reader deletes it.  Where no file can be written, as on a
;; full disk, Emacs sends a long text in parts before the message.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-spool--inline-limit 8192
  "Longest text in bytes that travels inside a call; longer ones go by file.
The process has the same limit, in `emacs/plists.py'.")

(defconst qwen-companion-spool--part-length 16384
  "Characters in a part of a text that cannot go by file.")

(defvar qwen-companion-spool--last-id 0
  "Number of the last text that was sent in parts.")

;;; Garbage

(defmacro qwen-companion-spool-without-collecting (&rest body)
  "Evaluate BODY without collecting garbage, and return its value.
With a long text Emacs would collect garbage several times, and each
collection takes as long as all the work on 64 KB."
  (declare (indent 0) (debug t))
  `(let ((gc-cons-threshold (max gc-cons-threshold 20000000)))
     ,@body))

;;; Sending

(defun qwen-companion-spool-pack (text &optional line-end)
  "Return TEXT as part of a payload.
That is (:text TEXT), for a long one (:text-file FILE), and when no file
can be written (:text-parts ID): its parts have been sent then, and the
payload must be sent next.  With LINE-END \"\\r\\n\", :crlf is t in
addition: the Python process puts that for each LF."
  (append
   (if (<= (string-bytes text) qwen-companion-spool--inline-limit)
       (list :text (substring-no-properties text))
     (condition-case err
         (list :text-file (qwen-companion-spool-write
                           text
                           ;; ASCII stays as it is, in a tenth of the time.
                           (if (= (length text) (string-bytes text))
                               'no-conversion
                             'utf-8-unix)))
       (file-error
        (qwen-companion-backend-notice-once
         (format "cannot write to %s (%s): long texts go over the connection, which is slower"
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
    ;; Emacs keeps such text as UTF-8: written as it is, in a twentieth of
    ;; the time that encoding it takes.
    (list :text-file (qwen-companion-spool-write nil 'no-conversion))))

(defun qwen-companion-spool-write (text coding &optional prefix suffix)
  "Put TEXT into a new private file, encoded as CODING, and return its name.
When TEXT is nil, put the whole text of the current buffer there.  Without
a Python process, it is among the temporary files of Emacs.  The name
begins with PREFIX, \"text-\" by default, and ends with SUFFIX.  Signal a
`file-error' when it cannot be written."
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
       ;; The incomplete file would take the room that is left.
       (delete-file file)
       (signal (car err) (cdr err))))
    file))

;;; Images

(defun qwen-companion-spool-clipboard-image ()
  "Put the image of the clipboard into a new private file; return its name.
Signal a `user-error' when there is none, or no Python process."
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

;; Of 20 MB, the first takes 35 ms for ASCII, and 190 to 340 for other
;; texts; the second takes 75 for ASCII, and 105 to 180 for others.  To
;; convert line ends on the way costs 30 ms more, and 0.5 s afterwards.

(defun qwen-companion-spool--insert-file (file coding)
  "Insert the contents of FILE at point, decoded as CODING."
  (let ((coding-system-for-read coding)
        (inhibit-eol-conversion nil)
        ;; How the current buffer is saved is not how FILE was.
        (buffer-file-coding-system buffer-file-coding-system)
        (buffer-file-coding-system-explicit buffer-file-coding-system-explicit)
        ;; The text is not ours: no format conversion may run on it.
        (format-alist nil)
        (after-insert-file-functions nil))
    (insert-file-contents file)))

(defun qwen-companion-spool--insert-bytes (file coding)
  "Insert the UTF-8 text in FILE at point without decoding its characters.
Emacs keeps them as the bytes that they have in UTF-8.  CODING is
`no-conversion', or `raw-text-dos' to convert line ends."
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
  "Insert the text that PAYLOAD carries at point, exactly as it came.
With CONVERT non-nil, insert a long text in which all lines end in CR LF
with LF instead.  Return non-nil if so."
  (if-let* ((file (qwen-companion-spool--file payload)))
      (let* ((file-name-handler-alist nil)
             (name (file-name-nondirectory file))
             (dos (and convert
                       (string-match-p "\\`\\(?:ascii\\|utf-8\\)-crlf-" name))))
        (unless (qwen-companion-untrusted-in-directory-p file (qwen-companion-backend-spool))
          (error "A text outside the private directory"))
        (if (string-prefix-p "ascii-" name)
            (qwen-companion-spool--insert-file file (if dos 'utf-8-dos 'utf-8-unix))
          (qwen-companion-spool--insert-bytes file (if dos 'raw-text-dos 'no-conversion)))
        (delete-file file)
        (and dos t))
    (insert (qwen-companion-spool--inline payload))
    nil))

(defun qwen-companion-spool-text (payload)
  "Return the text that PAYLOAD carries, exactly as it came."
  (or (qwen-companion-spool--inline payload)
      (with-temp-buffer
        (qwen-companion-spool-insert payload)
        (buffer-string))))

(defun qwen-companion-spool-numbers (payload)
  "Return the vector of integers that PAYLOAD carries."
  (with-temp-buffer
    (insert "[")
    (qwen-companion-spool-insert payload)
    (goto-char (point-max))
    (insert "]")
    (goto-char (point-min))
    (read (current-buffer))))

(defun qwen-companion-spool-size (payload)
  "Return the length in bytes of the text that PAYLOAD carries."
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
